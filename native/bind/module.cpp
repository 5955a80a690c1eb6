// The Python face of the native core: one bind_<topic>() per topic, nothing else.
#include "bind.hpp"

NB_MODULE(_ext, m) {
  using namespace headrace::bind;
  m.doc() = "Headrace native core";
  bind_errors(m);
  bind_cpu(m);
  bind_shm(m);
  bind_ring(m);
  bind_pool(m);
  bind_workers(m);
}
