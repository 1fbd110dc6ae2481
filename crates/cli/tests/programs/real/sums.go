// An HTTP server that keeps sums, and computes hashes on request.
//
// usage: sums PORT
package main

import (
	"crypto/sha256"
	"fmt"
	"log"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	hashesCount = 50000
	workers     = 8
	tick        = time.Millisecond
)

type sums struct {
	sync.Mutex
	of map[string]int
}

func (s *sums) add(answer http.ResponseWriter, request *http.Request) {
	number, err := strconv.Atoi(request.FormValue("number"))
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	s.Lock()
	defer s.Unlock()
	name := request.FormValue("name")
	s.of[name] += number
	fmt.Fprint(answer, s.of[name])
}

// Computes hashes in goroutines. Each first waits for the clock, and the collector runs at the same time.
func work(answer http.ResponseWriter, _ *http.Request) {
	digests := make([][sha256.Size]byte, workers)
	var group sync.WaitGroup
	for i := range digests {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			time.Sleep(tick)
			digest := sha256.Sum256([]byte{byte(i)})
			for n := 0; n < hashesCount; n++ {
				digest = sha256.Sum256(digest[:])
			}
			digests[i] = digest
		}(i)
	}
	runtime.GC()
	group.Wait()
	fmt.Fprintf(answer, "%x", digests)
}

func main() {
	kept := &sums{of: map[string]int{}}
	http.HandleFunc("/add", kept.add)
	http.HandleFunc("/work", work)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
