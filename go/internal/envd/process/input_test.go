package process

import (
	"context"
	"io"
	"os"
	"testing"
)

// A call that ends just when its input was written must not spoil the input of later calls.
func TestInputAfterACallThatEndedInTime(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close(); _ = write.Close() }()
	go func() { _, _ = io.Copy(io.Discard, read) }()
	p := &Process{writing: make(chan struct{}, 1), done: make(chan struct{})}
	p.writing <- struct{}{}
	for range 20000 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		_ = p.Write(ctx, write, []byte("x"))
		if err := p.Write(context.Background(), write, []byte("y")); err != nil {
			t.Fatal(err)
		}
	}
}
