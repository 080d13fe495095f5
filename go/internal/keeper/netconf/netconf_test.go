package netconf

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	good := Net{Netns: "/run/netns/x", Interface: "eth0", Address: "10.200.0.2/30", Gateway: "10.200.0.1"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Net){
		"no netns": func(n *Net) { n.Netns = "" }, "no interface": func(n *Net) { n.Interface = "" },
		"no prefix": func(n *Net) { n.Address = "10.200.0.2" }, "IPv6": func(n *Net) { n.Address = "fd00::2/64" },
		"gateway elsewhere": func(n *Net) { n.Gateway = "10.201.0.1" }, "no gateway": func(n *Net) { n.Gateway = "x" },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("accepted with %s", name)
		}
	}
}

// Whatever was on the interface before, afterwards it has the one address and the one route.
func TestPut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprintf("fykn%d", os.Getpid())
	ip := func(args string) string {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
		return string(out)
	}
	ip("netns add " + name)
	defer ip("netns del " + name)
	inside := "-n " + name + " "
	ip(inside + "link add eth0 type veth peer name peer0")
	ip(inside + "link set peer0 up")
	namespace, err := os.Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	n := Net{Netns: name, Interface: "eth0", Address: "10.200.0.2/30", Gateway: "10.200.0.1"}
	check := func() {
		t.Helper()
		if err := Put(namespace, n); err != nil {
			t.Fatal(err)
		}
		addresses := ip(inside + "-4 -o addr show dev eth0")
		if strings.Count(addresses, "inet ") != 1 || !strings.Contains(addresses, "inet 10.200.0.2/30 ") {
			t.Errorf("addresses:\n%s", addresses)
		}
		if routes := ip(inside + "-4 route show default"); strings.TrimSpace(routes) != "default via 10.200.0.1 dev eth0" {
			t.Errorf("routes:\n%s", routes)
		}
		if !strings.Contains(ip(inside+"link show lo"), "UP") {
			t.Error("lo is down")
		}
	}
	check()
	check() // nothing to do
	ip(inside + "addr flush dev eth0")
	check() // as runsc leaves it
	ip(inside + "addr add 10.99.0.1/24 dev eth0")
	ip(inside + "route replace default via 10.99.0.9 dev eth0")
	check()
	n.Interface = "eth9"
	if err := Put(namespace, n); err == nil {
		t.Error("an interface that is not there was accepted")
	}
}
