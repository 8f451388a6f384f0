#include "profile/png.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace litecache::profile {
namespace {

void AppendBigEndian(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8) *out += static_cast<char>((value >> shift) & 0xff);
}

uint32_t Crc32(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

uint32_t Adler32(const std::string& bytes) {
  uint32_t a = 1, b = 0;
  for (const char c : bytes) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

void AppendChunk(const std::string& type, const std::string& data, std::string* out) {
  AppendBigEndian(static_cast<uint32_t>(data.size()), out);
  *out += type + data;
  AppendBigEndian(Crc32(type + data), out);
}

// A zlib stream of stored blocks.
std::string Store(const std::string& bytes) {
  constexpr size_t kBlock = 65535;
  std::string out = "\x78\x01";
  for (size_t begin = 0; begin < bytes.size(); begin += kBlock) {
    const auto size = static_cast<uint16_t>(std::min(kBlock, bytes.size() - begin));
    out += static_cast<char>(begin + size == bytes.size() ? 1 : 0);
    for (const uint16_t word : {size, static_cast<uint16_t>(~size)}) {
      out += static_cast<char>(word & 0xff);
      out += static_cast<char>(word >> 8);
    }
    out.append(bytes, begin, size);
  }
  AppendBigEndian(Adler32(bytes), &out);
  return out;
}

}  // namespace

std::string EncodePng(const std::vector<uint8_t>& rgb, int64_t width, int64_t height) {
  LC_CHECK(width > 0 && height > 0 && static_cast<int64_t>(rgb.size()) == width * height * 3);
  std::string header;
  AppendBigEndian(static_cast<uint32_t>(width), &header);
  AppendBigEndian(static_cast<uint32_t>(height), &header);
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB
  std::string rows;
  for (int64_t y = 0; y < height; ++y) {
    rows += '\0';  // no filter
    const auto begin = rgb.begin() + y * width * 3;
    rows.append(begin, begin + width * 3);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  AppendChunk("IHDR", header, &png);
  AppendChunk("IDAT", Store(rows), &png);
  AppendChunk("IEND", "", &png);
  return png;
}

std::string EncodeBase64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[(word >> (18 - 6 * j)) & 63] : '=';
    }
  }
  return text;
}

}  // namespace litecache::profile
