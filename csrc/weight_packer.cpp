// Packs weight matrices on a background thread, piece by piece, first come first served.
#include "weight_packer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace pellucid {
namespace {

// About a megabyte of a usual matrix: enough that locks cost nothing, and little enough that
// threads end together.
constexpr std::int64_t kPiecePanels = 16;
constexpr int kPiecesOfHelp = 32;  // of each thread

// The thread leaves the last bytes to helpers: a tokenizer that is loaded at the same time takes
// memory for a while, which must not add to the peak. Of a small model that memory is little, and
// the helpers' time is what its first token waits for.
constexpr std::size_t kMaxLeftToHelpers = std::size_t{128} << 20;
constexpr int kLeftShare = 8;

std::size_t file_bytes(const Packing& packing) {
  std::size_t sum = 0;
  for (const Packing::Bytes& bytes : packing.files) sum += bytes.size;
  return sum;
}

// Gives the pages of a mapped file back. Reading them again reads the file. Neighbouring tensors
// may share the first and the last page, so these stay.
void give_back(const Packing::Bytes& bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes.size) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

WeightPacker::WeightPacker(std::size_t num_bytes) {
  shared_->left_to_helpers = std::min(kMaxLeftToHelpers, num_bytes / kLeftShare);
  try {
    shared_->thread = std::thread(&Shared::work, &*shared_);
  } catch (const std::system_error&) {
    // Without a thread, helpers pack everything.
  }
}

WeightPacker::~WeightPacker() {
  if (!shared_.is_own_process()) return;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->is_ending = true;
  }
  shared_->changed.notify_all();
  if (shared_->thread.joinable()) shared_->thread.join();
}

void WeightPacker::add(Packing packing) {
  shared_.require_own_process();
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->waiting_bytes += file_bytes(packing);
    shared_->jobs.push_back({std::move(packing)});
  }
  shared_->changed.notify_all();
}

std::size_t WeightPacker::waiting_bytes() const {
  shared_.require_own_process();
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->waiting_bytes;
}

std::size_t WeightPacker::help(ThreadPool& pool) {
  shared_.require_own_process();
  pool.run([&](Worker&) {
    for (int i = 0; i < kPiecesOfHelp && shared_->pack_piece(); ++i) {
    }
  });
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (shared_->first_open == shared_->jobs.size()) {
    shared_->changed.wait(lock, [&] { return shared_->num_done == shared_->jobs.size(); });
  }
  return shared_->waiting_bytes;
}

void WeightPacker::Shared::work() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return is_ending || waiting_bytes > left_to_helpers; });
      if (is_ending) return;
    }
    if (!pack_piece()) return;  // a helper took the last piece
  }
}

bool WeightPacker::Shared::pack_piece() {
  std::unique_lock<std::mutex> lock(mutex);
  if (first_open == jobs.size()) return false;
  Job& job = jobs[first_open];  // a deque's elements stay where they are
  const std::int64_t num_panels = job.packing.num_panels;
  const std::int64_t begin = job.num_taken;
  const std::int64_t end = std::min(begin + kPiecePanels, num_panels);
  job.num_taken = end;
  if (end == num_panels) ++first_open;
  lock.unlock();

  job.packing.pack(begin, end);
  finish_piece(job, end - begin);
  return true;
}

void WeightPacker::Shared::finish_piece(Job& job, std::int64_t num_panels) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    job.num_done += num_panels;
    if (job.num_done < job.packing.num_panels) return;
  }
  for (const Packing::Bytes& bytes : job.packing.files) give_back(bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ++num_done;
    waiting_bytes -= file_bytes(job.packing);
  }
  changed.notify_all();
}

}  // namespace pellucid
