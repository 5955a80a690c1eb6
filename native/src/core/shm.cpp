#include "headrace/shm.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "headrace/error.hpp"

namespace headrace {
namespace {

constexpr std::uint64_t kMagic = 0x3130474553525248ULL;  // "HRRSEG01"
constexpr const char* kPrefix = "headrace-";
constexpr std::time_t kUnfinishedGrace_s = 60;

struct SegmentHeader {
  std::atomic<std::uint64_t> magic;  // written last, with release: a reader that sees it sees the rest
  std::uint64_t mapped_bytes;
  ProcessId owner;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

std::string path_of(const std::string& name) {
  return std::string("/") + kPrefix + name;
}

std::string reason(int error) {
  return std::strerror(error);
}

void check_name(const std::string& name) {
  bool good = !name.empty() && name.size() <= 200;
  for (const char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                    c == '_' || c == '.');
  }
  if (!good) {
    throw Error(ErrorKind::invalid_input,
                "shared memory name: expected 1..200 characters of [A-Za-z0-9._-], got '" + name + "'");
  }
}

enum class Ownership { alive, dead, unknown };

// Who holds the segment behind `fd`. One that never got its header is dead once it is a minute old.
Ownership ownership(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return Ownership::unknown;
  const bool old = std::time(nullptr) - info.st_mtime > kUnfinishedGrace_s;
  if (info.st_size < static_cast<off_t>(sizeof(SegmentHeader))) return old ? Ownership::dead : Ownership::unknown;
  struct {
    std::uint64_t magic;
    std::uint64_t mapped_bytes;
    ProcessId owner;
  } header{};
  static_assert(sizeof(header) == sizeof(SegmentHeader));
  if (pread(fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) return Ownership::unknown;
  if (header.magic != kMagic) return old ? Ownership::dead : Ownership::unknown;
  return process_alive(header.owner) ? Ownership::alive : Ownership::dead;
}

// Unlink `path` only while it still names the file behind `fd`.
void unlink_if_same(const std::string& path, std::uint64_t inode) {
  const Descriptor now(shm_open(path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  struct stat info{};
  if (now.get() >= 0 && fstat(now.get(), &info) == 0 && static_cast<std::uint64_t>(info.st_ino) == inode) {
    shm_unlink(path.c_str());
  }
}

bool remove_if_dead(const std::string& path) {
  const Descriptor fd(shm_open(path.c_str(), O_RDONLY | O_CLOEXEC, 0));
  struct stat info{};
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0 || ownership(fd.get()) != Ownership::dead) return false;
  // One remover at a time: else the slower of two could remove the segment that the faster one has made in its place.
  if (flock(fd.get(), LOCK_EX) != 0) return false;
  unlink_if_same(path, static_cast<std::uint64_t>(info.st_ino));
  return true;
}

}  // namespace

SharedSegment::SharedSegment(std::string name, std::byte* base, std::size_t mapped_bytes, ProcessId owner,
                             std::uint64_t inode)
    : name_(std::move(name)), base_(base), mapped_bytes_(mapped_bytes), owner_(owner), inode_(inode) {}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : name_(std::move(other.name_)),
      base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      owner_(std::exchange(other.owner_, 0)),
      inode_(other.inode_) {}

SharedSegment::~SharedSegment() {
  if (base_ == nullptr) return;
  unlink();
  munmap(base_, mapped_bytes_);
}

void SharedSegment::unlink() noexcept {
  if (!owner()) return;  // attached, already unlinked, or a forked child of the owner
  owner_ = 0;
  unlink_if_same(path_of(name_), inode_);
}

SharedSegment SharedSegment::create(const std::string& name, std::size_t size) {
  check_name(name);
  if (size == 0 || size > (std::size_t{1} << 46U)) {
    throw Error(ErrorKind::invalid_input, "shared memory size: expected 1..2^46 bytes, got " + std::to_string(size));
  }
  const std::string path = path_of(name);
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  int raw = shm_open(path.c_str(), flags, 0600);
  if (raw < 0 && errno == EEXIST && remove_if_dead(path)) raw = shm_open(path.c_str(), flags, 0600);
  if (raw < 0) {
    const int error = errno;
    if (error == EEXIST) throw Error(ErrorKind::conflict, "shared memory '" + name + "' belongs to a live process");
    throw Error(ErrorKind::unavailable, "shared memory '" + name + "': " + reason(error));
  }
  const Descriptor fd(raw);
  const std::size_t mapped_bytes = size + kHeaderBytes;
  struct stat info{};
  // posix_fallocate takes the pages now, so that a full /dev/shm is an error here and not a SIGBUS later.
  int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(mapped_bytes));
  void* base = MAP_FAILED;
  if (error == 0 && fstat(fd.get(), &info) != 0) error = errno;
  if (error == 0) {
    base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (base == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    shm_unlink(path.c_str());
    throw Error(ErrorKind::overloaded,
                "shared memory '" + name + "' of " + std::to_string(mapped_bytes) + " bytes: " + reason(error));
  }
  auto* header = new (base) SegmentHeader{};
  header->mapped_bytes = mapped_bytes;
  header->owner = this_process();
  header->magic.store(kMagic, std::memory_order_release);
  return {name, static_cast<std::byte*>(base), mapped_bytes, header->owner, static_cast<std::uint64_t>(info.st_ino)};
}

SharedSegment SharedSegment::attach(const std::string& name) {
  check_name(name);
  const std::string path = path_of(name);
  const Descriptor fd(shm_open(path.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (fd.get() < 0) throw Error(ErrorKind::not_found, "shared memory '" + name + "': " + reason(errno));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0 || info.st_size <= static_cast<off_t>(kHeaderBytes)) {
    throw Error(ErrorKind::integrity_error, "shared memory '" + name + "': too short for a segment");
  }
  const auto mapped_bytes = static_cast<std::size_t>(info.st_size);
  void* base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) throw Error(ErrorKind::unavailable, "shared memory '" + name + "': " + reason(errno));
  SharedSegment segment(name, static_cast<std::byte*>(base), mapped_bytes, 0, static_cast<std::uint64_t>(info.st_ino));
  const auto* header = reinterpret_cast<const SegmentHeader*>(base);
  if (header->magic.load(std::memory_order_acquire) != kMagic || header->mapped_bytes != mapped_bytes) {
    throw Error(ErrorKind::integrity_error, "shared memory '" + name + "': no Headrace segment, or not finished yet");
  }
  return segment;
}

std::vector<std::string> SharedSegment::sweep() {
  std::vector<std::string> removed;
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return removed;
  while (const dirent* entry = readdir(directory)) {
    const std::string file = entry->d_name;
    if (file.rfind(kPrefix, 0) != 0) continue;
    if (remove_if_dead("/" + file)) removed.push_back(file.substr(std::strlen(kPrefix)));
  }
  closedir(directory);
  return removed;
}

}  // namespace headrace
