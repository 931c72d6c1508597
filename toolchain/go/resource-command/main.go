// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

// Command pulumi-resource-command serves the resource command:local:Command to
// the Pulumi engine. It is an independent implementation that follows the
// documented behaviour of the pulumi-command 1.2.1 SDK; where the official
// plugin can be downloaded, that one is to be preferred.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/pulumi/pulumi-go-provider/infer"

	"toolchain/resource-command/local"
)

// Version is the SDK version whose behaviour this plugin follows; the build
// sets it with -ldflags -X.
var Version = "1.2.1"

func main() {
	provider, err := infer.NewProviderBuilder().
		WithNamespace("pulumi").
		WithDisplayName("Command").
		WithDescription("Runs commands on this machine.").
		WithResources(infer.Resource(&local.Command{})).
		Build()
	if err == nil {
		err = provider.Run(context.Background(), "command", strings.TrimPrefix(Version, "v"))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "pulumi-resource-command: %v\n", err)
		os.Exit(1)
	}
}
