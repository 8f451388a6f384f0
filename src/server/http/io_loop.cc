#include "server/http/io_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "base/logging.h"

namespace litecache::server {

namespace asio = boost::asio;

struct IoLoop::Impl {
  struct Repeated {
    asio::steady_timer timer;
    std::chrono::milliseconds interval;
    std::function<void()> task;
  };

  void Arm(Repeated* repeated) {
    repeated->timer.expires_after(repeated->interval);
    repeated->timer.async_wait([this, repeated](const boost::system::error_code& error) {
      if (error) return;
      Arm(repeated);
      repeated->task();
    });
  }

  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard{context.get_executor()};
  std::list<Repeated> repeated;
  std::thread thread;
};

IoLoop::IoLoop() : impl_(std::make_unique<Impl>()) {}
IoLoop::~IoLoop() { Stop(); }

void IoLoop::Start() {
  impl_->thread = std::thread([this] {
    while (true) {
      try {
        impl_->context.run();
        return;
      } catch (const std::exception& error) {
        // An exception in the handler of one connection; the others continue.
        LogError("server: {}", error.what());
      }
    }
  });
}

void IoLoop::Post(std::function<void()> task) { asio::post(impl_->context, std::move(task)); }

void IoLoop::Every(std::chrono::milliseconds interval, std::function<void()> task) {
  impl_->repeated.push_back({asio::steady_timer(impl_->context), interval, std::move(task)});
  impl_->Arm(&impl_->repeated.back());
}

void IoLoop::Stop() {
  impl_->context.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

asio::io_context& IoLoop::context() { return impl_->context; }

}  // namespace litecache::server
