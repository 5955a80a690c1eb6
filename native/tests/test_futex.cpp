#include <atomic>
#include <chrono>
#include <thread>

#include "check.hpp"
#include "headrace/futex.hpp"

using namespace std::chrono_literals;

TEST(event_sleeper_wakes_for_what_was_published) {
  headrace::Event event;
  std::atomic<int> published{0};
  std::thread sleeper([&] {
    for (int turn = 1; turn <= 500; ++turn) {
      while (published.load(std::memory_order_seq_cst) < turn) {
        const auto ticket = event.prepare();
        if (published.load(std::memory_order_seq_cst) >= turn) break;
        event.wait(ticket, 10s);  // a lost wake would make this test take hours
      }
    }
  });
  for (int turn = 1; turn <= 500; ++turn) {
    published.store(turn, std::memory_order_seq_cst);
    event.notify();
    if (turn % 50 == 0) std::this_thread::sleep_for(1ms);
  }
  sleeper.join();
}

TEST(event_wait_returns_at_its_limit_and_after_a_wake_in_between) {
  headrace::Event event;
  event.wait(event.prepare(), 1ms);
  const auto ticket = event.prepare();
  event.notify();
  event.wait(ticket, 1h);  // the word has moved on: no sleep
  event.notify();          // nobody sleeps: no effect
}
