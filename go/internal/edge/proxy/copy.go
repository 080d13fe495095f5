package proxy

import (
	"io"
	"net/http"
	"sync"
)

const (
	// smallBuffer is what every open stream holds for as long as it lives; most carry little.
	smallBuffer = 8 << 10
	// bulkBuffer is what one step of a bulk transfer moves: half of it took a third off the rate.
	bulkBuffer = 512 << 10
	// bulkAfter is how many small buffers in a row must come full before a transfer counts as bulk.
	bulkAfter = 4
)

// smallPool is the httputil.BufferPool of the reverse proxies. Array pointers go into the pool without an allocation.
type smallPool struct{ pool sync.Pool }

// Get returns a buffer.
func (p *smallPool) Get() []byte {
	if b, ok := p.pool.Get().(*[smallBuffer]byte); ok {
		return b[:]
	}
	return make([]byte, smallBuffer)
}

// Put takes a buffer back.
func (p *smallPool) Put(b []byte) { p.pool.Put((*[smallBuffer]byte)(b)) }

var (
	smallBuffers smallPool
	bulkBuffers  = sync.Pool{New: func() any { return new([bulkBuffer]byte) }}
)

// body is an upstream's body on its way to the client. The reverse proxy copies it with a small buffer; when much comes
// in a row, body writes to the client itself, with a large one that it gives back as soon as the flow thins out.
type body struct {
	io.ReadCloser
	to       *exchange
	streamed bool // the length is not known: flush at once
	full     int  // small buffers in a row that came full
}

// Read fills p, or sends a bulk of the body to the client and returns 0 bytes.
func (b *body) Read(p []byte) (int, error) {
	if b.full >= bulkAfter {
		b.full = 0
		return 0, b.pump()
	}
	n, err := b.ReadCloser.Read(p)
	if n == len(p) {
		b.full++
	} else {
		b.full = 0
	}
	return n, err
}

func (b *body) pump() error {
	large := bulkBuffers.Get().(*[bulkBuffer]byte)
	defer bulkBuffers.Put(large)
	for {
		n, err := b.ReadCloser.Read(large[:])
		if n > 0 {
			if _, err := b.to.Write(large[:n]); err != nil {
				return err
			}
		}
		thin := n < bulkBuffer/16
		if n > 0 && (b.streamed || thin) {
			if err := b.to.FlushError(); err != nil {
				return err
			}
		}
		if err != nil || thin {
			return err
		}
	}
}

// carry makes res's body go to the client in the way of body.
func (x *exchange) carry(res *http.Response) {
	if res.ContentLength < 0 || res.ContentLength > bulkAfter*smallBuffer {
		res.Body = &body{ReadCloser: res.Body, to: x, streamed: res.ContentLength < 0}
	}
}
