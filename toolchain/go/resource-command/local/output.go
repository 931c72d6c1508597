// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

package local

import (
	"bytes"
	"context"
	"strings"
	"sync"

	provider "github.com/pulumi/pulumi-go-provider"
	"github.com/pulumi/pulumi-go-provider/infer"
)

// Logging says which streams of a command are shown while it runs. Both are
// always captured.
type Logging string

// The values, as the SDK spells them.
const (
	logStdout          Logging = "stdout"
	logStderr          Logging = "stderr"
	logStdoutAndStderr Logging = "stdoutAndStderr"
	logNone            Logging = "none"
)

// Values implements infer.Enum.
func (Logging) Values() []infer.EnumValue[Logging] {
	return []infer.EnumValue[Logging]{
		{Name: string(logStdout), Value: logStdout, Description: "Show stdout but not stderr"},
		{Name: string(logStderr), Value: logStderr, Description: "Show stderr but not stdout"},
		{Name: string(logStdoutAndStderr), Value: logStdoutAndStderr, Description: "Show stdout and stderr"},
		{Name: string(logNone), Value: logNone, Description: "Show nothing"},
	}
}

// maxLine bounds what is kept of an unfinished line before it is shown, so that
// output with no line ends cannot grow without limit in the display.
const maxLine = 64 << 10

// capture collects the two output streams of one command.
type capture struct {
	mu             sync.Mutex
	stdout, stderr stream
	all            bytes.Buffer
}

// newCapture returns a capture that shows the streams that mode names in the
// status line of the resource of ctx. A nil mode shows both.
func newCapture(ctx context.Context, mode *Logging) *capture {
	m := logStdoutAndStderr
	if mode != nil {
		m = *mode
	}
	log := provider.GetLogger(ctx)
	c := &capture{}
	c.stdout = stream{owner: c}
	c.stderr = stream{owner: c}
	if m == logStdout || m == logStdoutAndStderr {
		c.stdout.show = log.InfoStatus
	}
	if m == logStderr || m == logStdoutAndStderr {
		c.stderr.show = log.InfoStatus
	}
	return c
}

// finish shows what is left of an unfinished last line, and returns both
// streams, each without one final line end, and the two as they came.
func (c *capture) finish() (stdout, stderr, both string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stdout.flush()
	c.stderr.flush()
	return strings.TrimSuffix(c.stdout.text.String(), "\n"),
		strings.TrimSuffix(c.stderr.text.String(), "\n"),
		c.all.String()
}

type stream struct {
	owner *capture
	text  bytes.Buffer
	line  []byte
	show  func(string)
}

// Write implements io.Writer. It never fails and never blocks on the display
// of a long line.
func (s *stream) Write(p []byte) (int, error) {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.text.Write(p)
	s.owner.all.Write(p)
	if s.show == nil {
		return len(p), nil
	}
	s.line = append(s.line, p...)
	for {
		i := bytes.IndexByte(s.line, '\n')
		if i < 0 {
			break
		}
		s.show(strings.TrimSuffix(string(s.line[:i]), "\r"))
		s.line = s.line[i+1:]
	}
	if len(s.line) > maxLine {
		s.flush()
	}
	return len(p), nil
}

func (s *stream) flush() {
	if s.show != nil && len(s.line) > 0 {
		s.show(string(s.line))
	}
	s.line = nil
}
