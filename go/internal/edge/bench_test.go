package edge_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"forkyard.dev/forkyard/internal/edge"
)

// benchEdge runs an edge with one sandbox whose app answers on the returned port.
func benchEdge(b *testing.B, app http.HandlerFunc) (address string, port int) {
	dir, err := os.MkdirTemp("", "edge")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := edge.Config{Listen: "127.0.0.1:0", Control: filepath.Join(dir, "edge.sock"), API: filepath.Join(dir, "api.sock"), Domains: []string{domain}}
	e, err := edge.Start(cfg, slog.New(slog.DiscardHandler), func() int64 { return 0 })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Shutdown(); e.Wait() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: app}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { _ = server.Close() })
	control := &http.Client{Transport: &http.Transport{Dial: func(string, string) (net.Conn, error) { return net.Dial("unix", cfg.Control) }}}
	reader, writer := io.Pipe()
	go func() {
		fmt.Fprintf(writer, `{"epoch":1,"routes":[{"id":%q,"generation":1,"state":"running","address":"127.0.0.1","public":true}]}`, idA)
		_ = writer.Close()
	}()
	req, _ := http.NewRequest("PUT", "http://edge/v1/routes", reader)
	res, err := control.Do(req)
	if err != nil || res.StatusCode != 204 {
		b.Fatal(res, err)
	}
	return e.Addr(), l.Addr().(*net.TCPAddr).Port
}

// BenchmarkSmallGet is one keep-alive connection's round trip through the edge, client and server included.
func BenchmarkSmallGet(b *testing.B) {
	address, port := benchEdge(b, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "hello, world\n")
	})
	request := fmt.Appendf(nil, "GET /small HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: %s\r\nE2b-Sandbox-Port: %d\r\n\r\n", idA, port)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for pb.Next() {
			if _, err := c.Write(request); err != nil {
				b.Error(err)
				return
			}
			for { // the answer's last line is its body
				line, err := in.ReadSlice('\n')
				if err != nil {
					b.Error(err)
					return
				}
				if string(line) == "hello, world\n" {
					break
				}
			}
		}
	})
}

// BenchmarkDownload moves 64 MiB through the edge.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	address, port := benchEdge(b, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		sendZeros(w, size)
	})
	b.SetBytes(size)
	for b.Loop() {
		req, _ := http.NewRequest("GET", "http://"+address, nil)
		req.Header = to(idA, port)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n != size {
			b.Fatal(n, err)
		}
		_ = res.Body.Close()
	}
}
