// A parent in C++, linked dynamically. It has worker threads with a queue, futures, exceptions, and strings in trees
// and hash tables. All of them continue in the child.
// usage: threads [MIB]
#include "../forked.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

constexpr unsigned workers_count = 4;
constexpr uint64_t names_count = 20000;

// Threads that wait for work on a condition variable.
class Pool {
  public:
    Pool() {
        for (unsigned i = 0; i < workers_count; i++) workers.emplace_back([this] { work(); });
    }

    std::future<uint64_t> ask(std::function<uint64_t()> question) {
        std::packaged_task<uint64_t()> task(std::move(question));
        auto answer = task.get_future();
        std::lock_guard hold(mutex);
        tasks.push_back(std::move(task));
        condition.notify_one();
        return answer;
    }

    void end() {
        {
            std::lock_guard hold(mutex);
            is_ending = true;
        }
        condition.notify_all();
        for (auto &worker : workers) worker.join();
    }

  private:
    void work() {
        for (;;) {
            std::unique_lock hold(mutex);
            condition.wait(hold, [this] { return is_ending || !tasks.empty(); });
            if (tasks.empty()) return;
            auto task = std::move(tasks.front());
            tasks.pop_front();
            hold.unlock();
            task();
        }
    }

    std::mutex mutex;
    std::condition_variable condition;
    std::deque<std::packaged_task<uint64_t()>> tasks;
    bool is_ending = false;
    std::vector<std::thread> workers;
};

std::string name_of(uint64_t index) { return "name " + std::to_string(word_of(index)); }

struct Library {
    std::map<std::string, uint64_t> tree;
    std::unordered_map<uint64_t, std::shared_ptr<std::string>> table;

    Library() {
        for (uint64_t i = 0; i < names_count; i++) {
            tree.emplace(name_of(i), i);
            table.emplace(i, std::make_shared<std::string>(name_of(i)));
        }
    }

    void check() const {
        REQUIRE(tree.size() == names_count && table.size() == names_count);
        for (const auto &[name, index] : tree) REQUIRE(name == name_of(index) && *table.at(index) == name);
    }
};

// Hashes each quarter in a worker of its own, then hashes the four results.
uint64_t hash_by_workers(Pool &pool, const std::vector<uint64_t> &words) {
    std::vector<std::future<uint64_t>> answers;
    const size_t quarter = words.size() / workers_count;
    for (unsigned i = 0; i < workers_count; i++) {
        const uint64_t *begin = words.data() + i * quarter;
        answers.push_back(pool.ask([=] { return hash_of(begin, quarter * sizeof *begin); }));
    }
    std::vector<uint64_t> hashes;
    for (auto &answer : answers) hashes.push_back(answer.get());
    return hash_of(hashes.data(), hashes.size() * sizeof hashes[0]);
}

// Throws in a worker. Unwinding reads tables of libraries, which were mapped again in the child.
void check_exceptions(Pool &pool) {
    auto answer = pool.ask([]() -> uint64_t { throw std::runtime_error("from a worker"); });
    try {
        answer.get();
        REQUIRE(false, "the exception was lost");
    } catch (const std::runtime_error &error) {
        REQUIRE(std::string(error.what()) == "from a worker");
    }
}

} // namespace

int main(int count, char **arguments) {
    const size_t bytes = (count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 16) << 20;
    std::vector<uint64_t> words(bytes / sizeof(uint64_t));
    fill(words.data(), bytes, 0);
    Library library;
    Pool pool;
    const uint64_t hash = hash_by_workers(pool, words);

    char payload[PAYLOAD_BYTES_MAX];
    ready(hash);
    await_fork(payload);

    library.check();
    check_exceptions(pool);
    std::thread([&] { library.check(); }).join();
    const uint64_t found = hash_by_workers(pool, words);
    REQUIRE(found == hash);
    pool.end();
    finish(payload, found);
}
