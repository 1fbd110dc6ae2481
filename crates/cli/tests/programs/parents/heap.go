// A parent in Go whose children grow their heap to several times its size and shrink it again, while the collector
// works. Each time, the children return the free memory to the system, while their pages are still being fetched. The
// data from the parent must not change.
//
// usage: heap [MIB]
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

const (
	payloadPath = "/run/farfork/payload"
	tick        = 2 * time.Millisecond
	exitRight   = 42
	exitWrong   = 1
	// Number of words of a list node. Number of times that a child's heap grows and shrinks.
	nodeWords = 64
	rounds    = 5
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

// A list that the collector must walk.
type node struct {
	next  *node
	words [nodeWords]uint64
}

func newList(count, first uint64) *node {
	var head *node
	for i := count; i > 0; i-- {
		n := &node{next: head}
		for w := range n.words {
			n.words[w] = wordOf((first+i-1)*nodeWords + uint64(w))
		}
		head = n
	}
	return head
}

func check(head *node, count, first uint64) {
	seen := uint64(0)
	for n := head; n != nil; n = n.next {
		for w := range n.words {
			require(n.words[w] == wordOf((first+seen)*nodeWords+uint64(w)), "a word of a list changed")
		}
		seen++
	}
	require(seen == count, "a list lost nodes")
}

func awaitFork() string {
	begin := time.Now()
	for {
		if payload, err := os.ReadFile(payloadPath); err == nil {
			return string(bytes.TrimSpace(payload))
		}
		fmt.Fprintln(os.Stdout, "tick", time.Since(begin).Microseconds())
		time.Sleep(tick)
	}
}

func main() {
	mib := 16
	if len(os.Args) > 1 {
		mib, _ = strconv.Atoi(os.Args[1])
	}
	count := uint64(mib) << 20 / (8 * (nodeWords + 1))
	old := newList(count, 0)
	fmt.Println("ready", os.Getpid(), 0)
	payload := awaitFork()

	kept := newList(count/8, count)
	for round := uint64(0); round < rounds; round++ {
		check(newList(count, 2*count+round), count, 2*count+round)
		debug.FreeOSMemory()
		check(kept, count/8, count)
	}
	check(old, count, 0)
	var statistics runtime.MemStats
	runtime.ReadMemStats(&statistics)
	require(statistics.NumGC >= rounds && statistics.HeapReleased > 0, "the heap neither grew nor shrank")
	fmt.Println("result", payload, payload)
	os.Exit(exitRight)
}
