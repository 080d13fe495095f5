package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestApply(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.go")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := change{file: "file.go", old: "one", new: "two"}
	write("a one b")
	if err := apply(path, c); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != "a two b" {
		t.Errorf("became %q", text)
	}
	for _, text := range []string{"nothing", "one one"} {
		write(text)
		if err := apply(path, c); err == nil {
			t.Errorf("applied to %q", text)
		}
	}
}
