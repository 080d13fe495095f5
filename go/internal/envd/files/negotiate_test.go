package files

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func FuzzNegotiate(f *testing.F) {
	f.Add("gzip;q=0.5, identity;q=0", "bytes=0-1")
	f.Add("*;q=0", "")
	f.Fuzz(func(t *testing.T, accept, ranged string) {
		header := http.Header{"Accept-Encoding": {accept}, "Range": {ranged}}
		if useGzip, err := negotiate(header); useGzip && (err != nil || !strings.Contains(strings.ToLower(accept), "gzip")) {
			t.Fatal("gzip without being asked for")
		}
	})
}

func TestCopyBodyTellsACutFromAnEnd(t *testing.T) {
	var whole strings.Builder
	if err := copyBody(&whole, honestReader{strings.NewReader(strings.Repeat("x", copyBuffer+1))}); err != nil || whole.Len() != copyBuffer+1 {
		t.Fatalf("%v, %d bytes", err, whole.Len())
	}
	for _, size := range []int{0, 1, copyBuffer, copyBuffer + 1} {
		cut := io.MultiReader(strings.NewReader(strings.Repeat("x", size)), iotest.ErrReader(io.ErrUnexpectedEOF))
		if err := copyBody(io.Discard, honestReader{cut}); err == nil {
			t.Fatalf("a body cut after %d bytes passes for a whole one", size)
		}
	}
}

func TestPathLocksLetGo(t *testing.T) {
	var locks pathLocks
	first := locks.lock("/a")
	locks.lock("/b")() // another path is free
	second := make(chan func())
	go func() { second <- locks.lock("/a") }()
	select {
	case <-second:
		t.Fatal("two at once")
	default:
	}
	first()
	(<-second)()
	if len(locks.held) != 0 {
		t.Fatalf("%d locks are left", len(locks.held))
	}
}
