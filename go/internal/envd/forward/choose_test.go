package forward

import (
	"net/netip"
	"testing"
)

func TestChoose(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	for name, test := range map[string]struct {
		listeners         []string
		target            string
		found, everywhere bool
	}{
		"nothing":            {nil, "", false, false},
		"another port":       {[]string{"127.0.0.1:81"}, "", false, false},
		"loopback":           {[]string{"127.0.0.1:80"}, "127.0.0.1:80", true, false},
		"another loopback":   {[]string{"127.0.0.53:80"}, "127.0.0.53:80", true, false},
		"loopback of IPv6":   {[]string{"[::1]:80"}, "[::1]:80", true, false},
		"IPv4 before IPv6":   {[]string{"[::1]:80", "127.0.0.1:80"}, "127.0.0.1:80", true, false},
		"everywhere":         {[]string{"0.0.0.0:80"}, "", false, true},
		"everywhere in IPv6": {[]string{"[::]:80", "127.0.0.1:80"}, "127.0.0.1:80", true, true},
		"our own forward":    {[]string{"10.0.0.2:80"}, "", false, false},
		"both":               {[]string{"10.0.0.2:80", "127.0.0.1:80"}, "127.0.0.1:80", true, false},
	} {
		var listeners []netip.AddrPort
		for _, text := range test.listeners {
			listeners = append(listeners, netip.MustParseAddrPort(text))
		}
		target, found, everywhere := choose(listeners, 80, own)
		if found != test.found || everywhere != test.everywhere || found && target.String() != test.target {
			t.Fatalf("%s: %v %v %v", name, target, found, everywhere)
		}
	}
}
