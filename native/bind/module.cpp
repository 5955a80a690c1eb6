// The Python face of the native core: one bind_<topic>() per topic, nothing else.
#include "bind.hpp"

NB_MODULE(_ext, m) {
  using namespace headrace::bind;
  nb::set_leak_warnings(false);  // a daemon thread waiting in a ring at exit holds it rightly; users need no list of it
  m.doc() = "Headrace native core";
  bind_errors(m);
  bind_cpu(m);
  bind_shm(m);
  bind_ring(m);
  bind_pool(m);
  bind_workers(m);
  bind_json_numbers(m);
  bind_sample(m);
  bind_llm(m);
  bind_rl(m);
  bind_learner(m);
  bind_envs(m);
  bind_replay(m);
}
