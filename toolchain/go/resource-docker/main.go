// Copyright the authors of this project. Licensed under the LICENSE file of
// its repository.

// Command pulumi-resource-docker serves the resources of the pulumi_docker SDK
// to the Pulumi engine. It bridges the upstream Terraform provider in process,
// as the official plugin does, less that plugin's own resource docker:Image.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
)

// Version is the SDK version that this plugin serves; the build sets it with
// -ldflags -X.
var Version = "5.2.0"

// With the one argument -names, the command prints the names and types of all
// properties as JSON; toolchain/check_names.py compares them with the SDK's.
func main() {
	info := providerInfo(Version)
	if len(os.Args) == 2 && os.Args[1] == "-names" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(describe(info)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	schema, err := json.Marshal(map[string]any{"name": info.Name, "version": Version})
	if err != nil {
		panic(err)
	}
	tfbridge.Main(info.Name, Version, info, schema)
}
