package mountns

import "testing"

func TestBinds(t *testing.T) {
	b, err := ParseBind("/data/node/=/run/forkyard/node")
	if err != nil || b.From != "/data/node" || b.To != "/run/forkyard/node" {
		t.Fatalf("parsed %+v, %v", b, err)
	}
	for inside, want := range map[string]string{
		"/run/forkyard/node": "/data/node", "/run/forkyard/node/k/1": "/data/node/k/1",
		"/run/forkyard/nodes": "/run/forkyard/nodes", "/elsewhere": "/elsewhere",
	} {
		if got := b.Outside(inside); got != want {
			t.Errorf("%s is %s outside, want %s", inside, got, want)
		}
	}
	for _, bad := range []string{"", "/a", "a=/b", "/a=b", "="} {
		if _, err := ParseBind(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}
