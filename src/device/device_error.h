// A failure of the device: a lost GPU, a driver that does not match, a fault in a kernel.
#pragma once

#include "base/error.h"

namespace litecache {

// The device cannot be used any more, or not at all; the message gives the call and the driver's
// error. Requests in flight end with it.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace litecache
