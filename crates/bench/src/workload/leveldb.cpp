// A program that measures LevelDB in a directory, with the workloads of its db_bench: keys of 16 digits, values of 1
// KiB that Snappy halves, default options, one thread.
//
// It prints `ready`. For each workload whose name it reads, it prints `took NS OPERATIONS`, or `failed REASON`. The
// time excludes opening and closing a database. Reads verify every value.
#include "../baseline/endpoint.h"

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <iostream>
#include <leveldb/db.h>
#include <memory>
#include <random>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

constexpr size_t VALUE_BYTES = 1024;
constexpr size_t POOL_BYTES = 1 << 20;
// Each run of random bytes occurs twice: Snappy finds the second one.
constexpr size_t RUN_BYTES = 64;
// As in db_bench, the hot keys are the first hundredth.
constexpr uint64_t HOT_PART = 100;

using Database = std::unique_ptr<leveldb::DB>;

[[noreturn]] void fail_with(const std::string &reason) {
    printf("failed %s\n", reason.c_str());
    fflush(stdout);
    _exit(1);
}

void require(const leveldb::Status &status) {
    if (!status.ok()) fail_with(status.ToString());
}

// The values of all keys: parts of one pool, so that making them costs nothing.
class Values {
public:
    Values() : pool(POOL_BYTES, 0) {
        std::mt19937_64 generator(301);
        for (size_t begin = 0; begin < POOL_BYTES; begin += 2 * RUN_BYTES) {
            for (size_t i = 0; i < RUN_BYTES; i++) pool[begin + i] = pool[begin + RUN_BYTES + i] = char(generator());
        }
    }

    leveldb::Slice of(uint64_t key) const {
        size_t begin = key * 2 * RUN_BYTES % (POOL_BYTES - VALUE_BYTES);
        return leveldb::Slice(pool.data() + begin, VALUE_BYTES);
    }

private:
    std::string pool;
};

class Key {
public:
    explicit Key(uint64_t number) { length = snprintf(text, sizeof text, "%016" PRIu64, number); }
    leveldb::Slice slice() const { return leveldb::Slice(text, length); }

private:
    char text[32];
    size_t length;
};

class Bench {
public:
    Bench(std::string directory, uint64_t entries, uint64_t synced_entries)
        : directory(std::move(directory)), entries(entries), synced_entries(synced_entries) {}

    // Runs a workload, and prints its time.
    void run(const std::string &name) {
        bool is_fill = name.rfind("fill", 0) == 0;
        if (is_fill) open_new(name);
        if (!database) fail_with("a read needs a fill before it");
        int64_t began_ns = now_ns();
        uint64_t operations = is_fill ? fill(name) : read(name);
        printf("took %" PRId64 " %" PRIu64 "\n", now_ns() - began_ns, operations);
        fflush(stdout);
    }

private:
    void open_new(const std::string &name) {
        leveldb::Options options;
        options.create_if_missing = options.error_if_exists = true;
        leveldb::DB *opened;
        database.reset();
        require(leveldb::DB::Open(options, directory + "/" + name, &opened));
        database.reset(opened);
    }

    // These functions run a workload, and return the number of its operations.
    uint64_t fill(const std::string &name) {
        if (name == "fillseq") return put(entries, false, false);
        if (name == "fillrandom") return put(entries, true, false);
        if (name == "fillsync") return put(synced_entries, true, true);
        fail_with("there is no workload " + name);
    }

    uint64_t read(const std::string &name) {
        if (name == "readseq") return read_sequentially();
        if (name == "readrandom") return read_random(entries);
        if (name == "readhot") return read_random(std::max<uint64_t>(entries / HOT_PART, 1));
        fail_with("there is no workload " + name);
    }

    uint64_t put(uint64_t count, bool is_random, bool is_synced) {
        leveldb::WriteOptions write;
        write.sync = is_synced;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t key = is_random ? generator() % count : i;
            require(database->Put(write, Key(key).slice(), values.of(key)));
        }
        return count;
    }

    uint64_t read_sequentially() {
        std::unique_ptr<leveldb::Iterator> iterator(database->NewIterator(leveldb::ReadOptions()));
        uint64_t key = 0;
        for (iterator->SeekToFirst(); iterator->Valid(); iterator->Next()) verify(key++, iterator->key(), iterator->value());
        require(iterator->status());
        if (key != entries) fail_with("an iterator found " + std::to_string(key) + " of " + std::to_string(entries) + " entries");
        return entries;
    }

    // Reads random keys below a limit.
    uint64_t read_random(uint64_t limit) {
        std::string value;
        for (uint64_t i = 0; i < entries; i++) {
            uint64_t number = generator() % limit;
            Key key(number);
            require(database->Get(leveldb::ReadOptions(), key.slice(), &value));
            verify(number, key.slice(), value);
        }
        return entries;
    }

    void verify(uint64_t number, leveldb::Slice key, leveldb::Slice value) const {
        Key expected(number);
        if (key != expected.slice() || value != values.of(number)) fail_with("entry " + std::to_string(number) + " is wrong");
    }

    const std::string directory;
    const uint64_t entries, synced_entries;
    const Values values;
    std::mt19937_64 generator{17};
    Database database;
};

} // namespace

// Usage: leveldb DIRECTORY ENTRIES SYNCED_ENTRIES
int main(int count, char **arguments) {
    if (count != 4) {
        fputs("usage: leveldb DIRECTORY ENTRIES SYNCED_ENTRIES\n", stderr);
        return 2;
    }
    // It may wait for a volume whose nodes have ended with the benchmark, so the end of its input does not end it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Bench bench(arguments[1], strtoull(arguments[2], nullptr, 10), strtoull(arguments[3], nullptr, 10));
    puts("ready");
    fflush(stdout);
    for (std::string name; std::getline(std::cin, name);) bench.run(name);
    return 0;
}
