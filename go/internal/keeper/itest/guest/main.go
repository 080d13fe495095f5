// Command guest is what the keeper's tests run as PID 1: a small HTTP server that does what it is asked to.
package main

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"
)

var (
	counter atomic.Int64
	held    [][]byte
	frozen  atomic.Bool
)

func main() {
	runtime.GOMAXPROCS(2)
	go func() {
		for range time.Tick(20 * time.Millisecond) {
			counter.Add(1)
		}
	}()
	http.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		if frozen.Load() {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	http.HandleFunc("/freeze", func(w http.ResponseWriter, r *http.Request) { frozen.Store(r.FormValue("off") == "") })
	http.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, counter.Load()) })
	http.HandleFunc("/grow", grow)
	http.HandleFunc("/write", writeFile)
	http.HandleFunc("/read", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(r.FormValue("path")) // not ServeFile: files of /proc have no size
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	http.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) { os.Exit(number(r, "code")) })
	http.HandleFunc("/shout", func(_ http.ResponseWriter, r *http.Request) {
		line := make([]byte, 1<<20)
		for range number(r, "mb") {
			os.Stderr.Write(line)
		}
	})
	fmt.Fprintln(os.Stderr, "guest is up")
	if err := http.ListenAndServe(":8080", nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.FormValue(name))
	return n
}

// grow holds mb more megabytes of memory that is not zero; 0 lets all go.
func grow(w http.ResponseWriter, r *http.Request) {
	mb := number(r, "mb")
	if mb == 0 {
		held = nil
		debug.FreeOSMemory()
		return
	}
	block := make([]byte, mb<<20)
	for i := 0; i < len(block); i += 64 {
		block[i] = byte(i>>6) | 1
	}
	held = append(held, block)
	fmt.Fprint(w, len(held))
}

func writeFile(w http.ResponseWriter, r *http.Request) {
	file, err := os.OpenFile(r.FormValue("path"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err == nil {
		defer file.Close()
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i) | 1
		}
		for range number(r, "mb") {
			if _, err = file.Write(block); err != nil {
				break
			}
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
	}
}
