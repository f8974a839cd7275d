// RowBlock: a block of rows that one thread, its owner, takes through a segment of a program. Other
// threads help with columns.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "memory_units.h"
#include "patience.h"

namespace pellucid {

// Pieces of columns are numbered within a stage; the numbers of stages only grow. The owner opens a
// stage, any thread takes pieces of it, and the owner waits for all pieces before it goes on.
class alignas(kCacheLine) RowBlock {
 public:
  struct Piece {
    std::uint32_t stage;
    std::uint32_t number;
  };

  // -- the owner --------------------------------------------------------------------------------

  // Opens a stage. Helpers see the owner's writes before it.
  void open(std::uint32_t stage) {
    num_done_.store(0, std::memory_order_relaxed);
    next_.store(ticket(stage, 0), std::memory_order_release);
  }

  // Waits until all pieces of the stage are computed. The owner sees the helpers' writes
  // afterwards.
  void wait_for(std::uint32_t num_pieces) const {
    Patience patience;
    while (num_done_.load(std::memory_order_acquire) != num_pieces) patience.wait();
  }

  // Declares that all stages before `stage` are computed.
  void close(std::uint32_t stage) {
    next_.store(ticket(stage, kNothingLeft), std::memory_order_release);
  }

  // -- everybody --------------------------------------------------------------------------------

  // The first stage that may still have pieces to compute.
  std::uint32_t stage() const { return stage_of(next_.load(std::memory_order_acquire)); }

  // Takes a piece of a stage in [begin, end), if there is one; num_pieces(stage) is the number of a
  // stage's pieces. Takes exactly the ticket that was checked: between the check and the exchange
  // the thread may lose its core for so long that the owner opens a stage beyond `end`.
  template <class NumPieces>
  std::optional<Piece> take(std::uint32_t begin, std::uint32_t end, NumPieces num_pieces) {
    std::uint64_t ticket = next_.load(std::memory_order_acquire);
    std::uint32_t stage;
    do {
      stage = stage_of(ticket);
      if (stage < begin || stage >= end || number_of(ticket) >= num_pieces(stage)) {
        return std::nullopt;
      }
    } while (!next_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
    return Piece{stage, number_of(ticket)};
  }

  void finish_piece() { num_done_.fetch_add(1, std::memory_order_release); }

 private:
  static constexpr std::uint32_t kNothingLeft = std::uint32_t{1} << 31;  // more than any stage has

  static std::uint64_t ticket(std::uint32_t stage, std::uint32_t number) {
    return std::uint64_t{stage} << 32 | number;
  }
  static std::uint32_t stage_of(std::uint64_t ticket) {
    return static_cast<std::uint32_t>(ticket >> 32);
  }
  static std::uint32_t number_of(std::uint64_t ticket) {
    return static_cast<std::uint32_t>(ticket);
  }

  std::atomic<std::uint64_t> next_{ticket(0, kNothingLeft)};
  alignas(kCacheLine) std::atomic<std::uint32_t> num_done_{0};
};

}  // namespace pellucid
