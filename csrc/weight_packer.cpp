#include "weight_packer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace pellucid {
namespace {

// About a megabyte of a usual matrix: locks cost nothing, and threads end together.
constexpr std::int64_t kPiecePanels = 16;
constexpr int kPiecesOfHelp = 32;  // of each thread

// Left to those who help: what is read beside the weights, such as a tokenizer, takes memory for a
// while, which shall not add to the peak.
constexpr std::size_t kLeftToHelpers = std::size_t{128} << 20;

std::size_t file_bytes(const Packing& packing) {
  std::size_t sum = 0;
  for (const Packing::Bytes& bytes : packing.files) sum += bytes.size;
  return sum;
}

// They may be read again, then from the file. Neighbours may share the outer pages.
void give_back(const Packing::Bytes& bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes.size) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

WeightPacker::WeightPacker() {
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    // Then all is left to those who help.
  }
}

WeightPacker::~WeightPacker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WeightPacker::add(Packing packing) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_bytes_ += file_bytes(packing);
    jobs_.push_back({std::move(packing)});
  }
  changed_.notify_all();
}

std::size_t WeightPacker::waiting_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_bytes_;
}

std::size_t WeightPacker::help(ThreadPool& pool) {
  pool.run([&](Worker&) {
    for (int i = 0; i < kPiecesOfHelp && pack_piece(); ++i) {
    }
  });
  std::unique_lock<std::mutex> lock(mutex_);
  if (first_open_ == jobs_.size()) {
    changed_.wait(lock, [this] { return num_done_ == jobs_.size(); });
  }
  return waiting_bytes_;
}

void WeightPacker::work() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_ending_ || waiting_bytes_ > kLeftToHelpers; });
      if (is_ending_) return;
    }
    if (!pack_piece()) return;  // a helper was faster
  }
}

bool WeightPacker::pack_piece() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (first_open_ == jobs_.size()) return false;
  Job& job = jobs_[first_open_];  // a deque's elements stay where they are
  PackedMatrix& matrix = *job.packing.matrix;
  const std::int64_t begin = job.num_taken;
  const std::int64_t end = std::min(begin + kPiecePanels, matrix.num_panels());
  job.num_taken = end;
  if (end == matrix.num_panels()) ++first_open_;
  lock.unlock();

  matrix.pack(job.packing.source, begin, end);
  finish_piece(job, end - begin);
  return true;
}

void WeightPacker::finish_piece(Job& job, std::int64_t num_panels) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    job.num_done += num_panels;
    if (job.num_done < job.packing.matrix->num_panels()) return;
  }
  for (const Packing::Bytes& bytes : job.packing.files) give_back(bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_done_;
    waiting_bytes_ -= file_bytes(job.packing);
  }
  changed_.notify_all();
}

}  // namespace pellucid
