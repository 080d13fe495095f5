package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	now := time.Unix(0, 0)
	l := New(20, func() time.Time { return now })
	allowed := func(address string, tries int) int {
		n := 0
		for range tries {
			if l.Allow(address) {
				n++
			}
		}
		return n
	}
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d allowed, want %d", what, got, want)
		}
	}
	expect("burst", allowed("10.0.0.1:1000", 50), 20)
	expect("other port", allowed("10.0.0.1:2000", 50), 0)
	expect("mapped", allowed("[::ffff:10.0.0.1]:1", 50), 0)
	expect("other client", allowed("10.0.0.2:1000", 50), 20)
	now = now.Add(500 * time.Millisecond)
	expect("half a second later", allowed("10.0.0.1:1000", 50), 10)
	now = now.Add(time.Hour)
	expect("long after", allowed("10.0.0.1:1000", 50), 20)
	expect("IPv6", allowed("[2001:db8:0:1::1]:1", 50), 20)
	expect("same network", allowed("[2001:db8:0:1:ffff::2]:1", 50), 0)
	expect("next network", allowed("[2001:db8:0:2::1]:1", 50), 20)
	expect("zone", allowed("[fe80::1%eth0]:1", 50), 20)
	expect("no address", allowed("@", 50), 20)
	expect("none either", allowed("", 50), 0)
}

func TestMemoryIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	l := New(20, func() time.Time { return now })
	for range 20 {
		l.Allow("9.9.9.9:1")
	}
	for i := range 5 * maxTracked / 2 {
		l.Allow(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
		if i%1000 == 0 && l.Allow("9.9.9.9:1") {
			t.Fatalf("a busy client got free after %d others", i)
		}
	}
	if n := len(l.current) + len(l.old); n > 2*maxTracked {
		t.Errorf("%d addresses are remembered", n)
	}
}
