// Counts the threads that a process may keep busy: from the cores, the fast cores, the affinity
// mask and the quotas of cgroups.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu_info.h"
#include "text_files.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pellucid {
namespace {

#if defined(__linux__)

std::vector<int> allowed_cpus() {
  // The kernel refuses a mask smaller than its own: grow until it fits.
  for (int capacity = 1024; capacity <= (1 << 16); capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    if (mask == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(capacity);
    std::vector<int> cpus;
    const bool fits = sched_getaffinity(0, size, mask) == 0;
    for (int cpu = 0; fits && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, size, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (fits) return cpus;
  }
  return {};
}

std::string cpu_folder(int cpu, const std::string& root) {
  return root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
}

// One number for each CPU, from the same file in the folder of each; empty if any has none.
std::vector<std::int64_t> numbers_of(const std::vector<int>& cpus, const std::string& file,
                                     const std::string& root) {
  std::vector<std::int64_t> numbers;
  for (const int cpu : cpus) {
    const auto number = parse_int(read_text_file(cpu_folder(cpu, root) + file).value_or(""));
    if (!number || *number <= 0) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

// Returns the CPUs on fast cores, because the others would wait at every barrier for a thread on a
// slow core. Intel's hybrid processors list their kinds of cores. Elsewhere the kernel reports the
// capacity of each CPU, or at least its frequency. Returns all CPUs where nothing is reported.
std::vector<int> fast_cpus(const std::vector<int>& cpus, const std::string& root) {
  const auto performance_cpus =
      parse_cpu_list(read_text_file(root + "/sys/devices/cpu_core/cpus").value_or(""));
  std::vector<int> fast;
  if (performance_cpus) {
    const std::set<int> listed(performance_cpus->begin(), performance_cpus->end());
    for (const int cpu : cpus) {
      if (listed.count(cpu) != 0) fast.push_back(cpu);
    }
    return fast.empty() ? cpus : fast;
  }
  std::vector<std::int64_t> speeds = numbers_of(cpus, "/cpu_capacity", root);
  if (speeds.empty()) speeds = numbers_of(cpus, "/cpufreq/cpuinfo_max_freq", root);
  if (speeds.empty()) return cpus;
  const std::int64_t fastest = *std::max_element(speeds.begin(), speeds.end());
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    // Cores of one kind differ by less than a fifth, cores of two kinds by more.
    if (speeds[i] >= fastest / 5 * 4) fast.push_back(cpus[i]);
  }
  return fast;
}

// Counts the distinct cores of the CPUs. A CPU whose siblings are not reported is a core of its
// own.
int count_cores(const std::vector<int>& cpus, const std::string& root) {
  std::set<int> first_siblings;
  for (const int cpu : cpus) {
    const auto text = read_text_file(cpu_folder(cpu, root) + "/topology/thread_siblings_list");
    const auto siblings = parse_cpu_list(text.value_or(""));
    first_siblings.insert(siblings ? siblings->front() : cpu);
  }
  return static_cast<int>(first_siblings.size());
}

// One mounted cgroup hierarchy that can limit CPU time.
struct Hierarchy {
  bool is_v2;
  std::string mount_root;   // which cgroup of the hierarchy the mount shows ("/" for all)
  std::string mount_point;  // where
};

bool has_item(std::string_view list, std::string_view item) {
  const std::vector<std::string_view> items = split(list, ',');
  return std::find(items.begin(), items.end(), item) != items.end();
}

// Mountinfo writes space, tab, newline and backslash in paths as \ooo.
std::string unescape(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7';
    };
    if (text[i] == '\\' && is_octal(i + 1) && is_octal(i + 2) && is_octal(i + 3)) {
      result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                  (text[i + 3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::vector<Hierarchy> cpu_hierarchies(const std::string& root) {
  std::vector<Hierarchy> hierarchies;
  const std::string mountinfo = read_text_file(root + "/proc/self/mountinfo").value_or("");
  for (const std::string_view line : split(mountinfo, '\n')) {
    // id parent major:minor root mount_point options [tag]... - type source super_options
    const std::size_t separator = line.find(" - ");
    if (separator == std::string_view::npos) continue;
    const std::vector<std::string_view> mount = split(line.substr(0, separator), ' ');
    const std::vector<std::string_view> system = split(line.substr(separator + 3), ' ');
    if (mount.size() < 5 || system.size() < 3) continue;
    const bool is_v2 = system[0] == "cgroup2";
    const bool is_v1 = system[0] == "cgroup" && has_item(system[2], "cpu");
    if (is_v1 || is_v2) hierarchies.push_back({is_v2, unescape(mount[3]), unescape(mount[4])});
  }
  return hierarchies;
}

// The cgroup of this process in a hierarchy, as /proc/self/cgroup names it; empty if it has none.
std::string own_cgroup(std::string_view proc_self_cgroup, bool is_v2) {
  for (const std::string_view line : split(proc_self_cgroup, '\n')) {
    // id:controllers:path, where v2 is "0::path"; the path may contain colons
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() : has_item(controllers, "cpu")) {
      return std::string(trim(line.substr(second + 1)));
    }
  }
  return {};
}

// The part of a cgroup's path that is visible below the mount point. In a container the mount shows
// only a part of the hierarchy; a cgroup outside of that part is not visible.
std::string below_mount(const std::string& cgroup, const std::string& mount_root) {
  if (mount_root == "/") return cgroup;
  const bool is_below = cgroup.compare(0, mount_root.size(), mount_root) == 0 &&
                        (cgroup.size() == mount_root.size() || cgroup[mount_root.size()] == '/');
  return is_below ? cgroup.substr(mount_root.size()) : std::string();
}

std::optional<double> quota_of(std::optional<std::int64_t> quota_us,
                               std::optional<std::int64_t> period_us) {
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

// The limit of one cgroup by itself. "max" (v2), -1 (v1) and anything malformed mean no limit.
std::optional<double> quota_in(const std::string& folder, bool is_v2) {
  if (is_v2) {
    const std::string cpu_max = read_text_file(folder + "/cpu.max").value_or("");
    const std::vector<std::string_view> fields = split(trim(cpu_max), ' ');
    if (fields.size() != 2) return std::nullopt;
    return quota_of(parse_int(fields[0]), parse_int(fields[1]));
  }
  return quota_of(parse_int(read_text_file(folder + "/cpu.cfs_quota_us").value_or("")),
                  parse_int(read_text_file(folder + "/cpu.cfs_period_us").value_or("")));
}

// The tightest limit from this process's own cgroup up to the root of each hierarchy.
std::optional<double> cgroup_quota(const std::string& root) {
  const std::string proc_self_cgroup = read_text_file(root + "/proc/self/cgroup").value_or("");
  std::optional<double> tightest;
  for (const Hierarchy& hierarchy : cpu_hierarchies(root)) {
    std::string cgroup =
        below_mount(own_cgroup(proc_self_cgroup, hierarchy.is_v2), hierarchy.mount_root);
    while (true) {
      const std::optional<double> quota =
          quota_in(root + hierarchy.mount_point + cgroup, hierarchy.is_v2);
      if (quota) tightest = std::min(*quota, tightest.value_or(*quota));
      const std::size_t slash = cgroup.rfind('/');
      if (slash == std::string::npos) break;
      cgroup.erase(slash);
    }
  }
  return tightest;
}

CpuThreads count_cpus(const std::string& root) {
  const std::vector<int> allowed = allowed_cpus();
  const auto online =
      parse_cpu_list(read_text_file(root + "/sys/devices/system/cpu/online").value_or(""));
  CpuThreads threads{};
  threads.num_allowed_cpus = static_cast<int>(allowed.size());
  threads.num_allowed_cores = count_cores(allowed, root);
  threads.num_fast_cores = count_cores(fast_cpus(allowed, root), root);
  threads.num_logical_cpus = online ? static_cast<int>(online->size())
                                    : static_cast<int>(std::thread::hardware_concurrency());
  threads.num_physical_cores = online ? count_cores(*online, root) : threads.num_logical_cpus;
  threads.cpu_quota = cgroup_quota(root);
  return threads;
}

#elif defined(__APPLE__)

int sysctl_count(const char* name, int otherwise) {
  int value = 0;
  std::size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value > 0 ? value : otherwise;
}

// macOS has neither affinity masks nor quotas.
CpuThreads count_cpus(const std::string&) {
  CpuThreads threads{};
  threads.num_logical_cpus = sysctl_count("hw.logicalcpu", 1);
  threads.num_physical_cores = sysctl_count("hw.physicalcpu", threads.num_logical_cpus);
  threads.num_allowed_cpus = threads.num_logical_cpus;
  threads.num_allowed_cores = threads.num_physical_cores;
  threads.num_fast_cores = sysctl_count("hw.perflevel0.physicalcpu", threads.num_physical_cores);
  return threads;
}

#else

CpuThreads count_cpus(const std::string&) {
  CpuThreads threads{};
  threads.num_logical_cpus = static_cast<int>(std::thread::hardware_concurrency());
  threads.num_physical_cores = threads.num_logical_cpus;
  threads.num_allowed_cpus = threads.num_logical_cpus;
  threads.num_allowed_cores = threads.num_logical_cpus;
  threads.num_fast_cores = threads.num_logical_cpus;
  return threads;
}

#endif

}  // namespace

CpuThreads cpu_threads(const std::string& root) {
  CpuThreads threads = count_cpus(root);
  threads.num_threads = std::max(threads.num_fast_cores, 1);
  threads.thread_limit = ThreadLimit::kCores;
  if (threads.num_allowed_cores < threads.num_physical_cores) {
    threads.thread_limit = ThreadLimit::kAffinity;
  }
  if (threads.num_fast_cores < threads.num_allowed_cores) {
    threads.thread_limit = ThreadLimit::kFastCores;
  }
  // A fraction of a CPU counts as a thread: the thread is merely idle for the rest of each period.
  if (threads.cpu_quota && std::ceil(*threads.cpu_quota) < threads.num_threads) {
    threads.num_threads = static_cast<int>(std::ceil(*threads.cpu_quota));
    threads.thread_limit = ThreadLimit::kQuota;
  }
  return threads;
}

}  // namespace pellucid
