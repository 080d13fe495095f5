package guest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostsKeepsWhatIsNotOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	fresh := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox # sandbox\n"
	if got := hostsWith(path, "box"); got != fresh {
		t.Fatalf("%q", got)
	}
	if err := os.WriteFile(path, []byte("127.0.0.1 localhost\n1.2.3.4 db\n127.0.1.1\told # sandbox"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := hostsWith(path, "new"); got != "127.0.0.1 localhost\n1.2.3.4 db\n127.0.1.1\tnew # sandbox\n" {
		t.Fatalf("%q", got)
	}
}

func TestIdentityIsChecked(t *testing.T) {
	good := Identity{SandboxID: "iabc", Hostname: "a-b.c", BootID: "00000000-0000-4000-8000-00000000000f", MachineID: "0123456789abcdef0123456789abcdef", Timestamp: "2026-01-02T03:04:05.123456789Z"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := (Identity{}).Validate(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []Identity{{Hostname: "a_b"}, {Hostname: "a\nb"}, {Hostname: "a-"}, {BootID: "0"}, {MachineID: "0"}, {Timestamp: "0"}, {SandboxID: "a b"}, {TemplateID: "a\x00"}} {
		if bad.Validate() == nil {
			t.Fatalf("%+v was taken", bad)
		}
	}
}

func TestWriteFileWritesInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "f")
	if err := writeFile(path, "one", 0o644); err != nil {
		t.Fatal(err)
	}
	link := path + ".link"
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(path, "two", 0o644); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(link); string(got) != "two" {
		t.Fatalf("%q", got)
	}
}
