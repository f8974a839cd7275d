// ProcessOwned: an object that only the process that made it uses and destroys, not its forked
// children.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace pellucid {

// A forked child has copies of its parent's mutexes, condition variables and thread handles, but
// none of the threads. A mutex may be locked for ever there, destroying a condition variable waits
// for threads that do not exist, and the handle of such a thread may name a new one. So the child
// leaves the object alone: the memory stays allocated until the child exits.
template <class T>
class ProcessOwned {
 public:
  template <class... Args>
  explicit ProcessOwned(Args&&... args)
      : process_(getpid()), object_(std::make_unique<T>(std::forward<Args>(args)...)) {}
  ~ProcessOwned() {
    if (!is_own_process()) static_cast<void>(object_.release());
  }
  ProcessOwned(const ProcessOwned&) = delete;
  ProcessOwned& operator=(const ProcessOwned&) = delete;

  bool is_own_process() const { return getpid() == process_; }

  // Throws std::runtime_error in a process forked off the one that made the object.
  void require_own_process() const {
    if (is_own_process()) return;
    throw std::runtime_error(
        "this process was forked off one that had made an engine, whose threads did not come "
        "along; make the engine after the fork, or start processes with 'spawn'");
  }

  // Only in the process that made the object.
  T* operator->() const { return object_.get(); }
  T& operator*() const { return *object_; }

 private:
  const pid_t process_;
  std::unique_ptr<T> object_;
};

}  // namespace pellucid
