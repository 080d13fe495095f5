package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFrom(t *testing.T) {
	inner := New(NoSpace, "full")
	if got := From(fmt.Errorf("doing: %w", inner)); got != inner {
		t.Errorf("got %+v", got)
	}
	if got := From(errors.New("x\ny")); got.Code != Internal || got.Message != "x y" {
		t.Errorf("got %+v", got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[31mb\n")
	f.Add(strings.Repeat("ä", maxMessage))
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, text string) {
		clean := Clean(text)
		if len(clean) > maxMessage+3 || !utf8.ValidString(clean) || strings.ContainsAny(clean, "\n\r\x1b\x00") {
			t.Errorf("%q became %q", text, clean)
		}
	})
}
