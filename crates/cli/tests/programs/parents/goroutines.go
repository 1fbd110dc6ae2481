// A parent in Go. It has goroutines in channel waits, timers and the network poller, and maps and slices that the
// garbage collector walks in the child. Needs only the standard library of Go 1.19.
//
// usage: goroutines [MIB]
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	payloadPath  = "/run/farfork/payload"
	tick         = 2 * time.Millisecond
	workersCount = 4
	namesCount   = 20000
	exitRight    = 42
	exitWrong    = 1
)

func require(holds bool, why string) {
	if !holds {
		fmt.Fprintln(os.Stderr, "wrong:", why)
		os.Exit(exitWrong)
	}
}

func wordOf(index uint64) uint64 {
	z := (index + 1) * 0x9e3779b97f4a7c15
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

func nameOf(index uint64) string { return fmt.Sprint("name ", wordOf(index)) }

func hashOf(words []uint64) uint64 {
	hash := uint64(0xcbf29ce484222325)
	for _, word := range words {
		hash = (hash ^ word) * 0x100000001b3
	}
	return hash
}

// A goroutine that hashes the words of each request. It has waited since before the fork.
type worker struct {
	questions chan []uint64
	answers   chan uint64
}

func newWorker() worker {
	w := worker{make(chan []uint64), make(chan uint64)}
	go func() {
		for words := range w.questions {
			w.answers <- hashOf(words)
		}
		close(w.answers)
	}()
	return w
}

// Starts a ticker, and a reader of a pipe in the runtime's poller. Both must continue in the child.
func keepBusy() (stop func()) {
	reader, writer, err := os.Pipe()
	require(err == nil, "no pipe")
	beats := time.NewTicker(time.Millisecond)
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		line := make([]byte, 16)
		n, err := reader.Read(line)
		require(err == nil && string(line[:n]) == "end", "the pipe lost its line")
	}()
	return func() {
		<-beats.C
		<-beats.C
		beats.Stop()
		writer.WriteString("end")
		done.Wait()
	}
}

func awaitFork() string {
	begin := time.Now()
	for {
		if payload, err := os.ReadFile(payloadPath); err == nil {
			return string(bytes.TrimSpace(payload))
		}
		fmt.Fprintln(os.Stdout, "tick", monotonicMicroseconds(begin))
		time.Sleep(tick)
	}
}

// Go shows only differences between times of CLOCK_MONOTONIC. Differences suffice, because the test looks for gaps.
func monotonicMicroseconds(begin time.Time) int64 { return time.Since(begin).Microseconds() }

func checkNames(names map[uint64]string) {
	require(len(names) == namesCount, "the map lost names")
	for index, name := range names {
		require(name == nameOf(index), "a name changed")
	}
}

func main() {
	mib := 16
	if len(os.Args) > 1 {
		mib, _ = strconv.Atoi(os.Args[1])
	}
	words := make([]uint64, mib<<20/8)
	for i := range words {
		words[i] = wordOf(uint64(i))
	}
	names := make(map[uint64]string, namesCount)
	for i := uint64(0); i < namesCount; i++ {
		names[i] = nameOf(i)
	}
	workers := make([]worker, workersCount)
	for i := range workers {
		workers[i] = newWorker()
	}
	stop := keepBusy()
	hash := hashOf(words)

	fmt.Println("ready", os.Getpid(), hash)
	payload := awaitFork()

	for _, w := range workers {
		w.questions <- words
	}
	for _, w := range workers {
		require(<-w.answers == hash, "a worker found another hash")
		close(w.questions)
	}
	runtime.GC()
	checkNames(names)
	stop()
	number, err := strconv.ParseUint(strings.Fields(payload)[0], 10, 64)
	require(err == nil, "the payload begins with no number")
	fmt.Println("result", number, hash+number)
	os.Exit(exitRight)
}
