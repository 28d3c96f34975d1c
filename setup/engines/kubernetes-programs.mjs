// The programs of a real Kubernetes: one program that is each of its parts, containerd and runc, from Go modules.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { SetUpFailure } from '../say.mjs'
import { ensureDebianFiles, ensurePrograms, findGo, go } from './engine-programs.mjs'
import { makeImageArchive } from './image-archive.mjs'

const versions = { kubernetes: '1.34.4', containerd: '2.2.9', runc: '1.4.3' }
/** The folder of these programs, for `engineFolder`. */
export const programsName = `kubernetes-${versions.kubernetes}`
const debianPackages = ['containernetworking-plugins', 'catatonit', 'busybox-static']

/** Why this machine can't run a Kubernetes, or undefined. */
export function whyNoKubernetes() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'Kubernetes is built for x64 Linux only'
  if (process.getuid?.() !== 0) return 'only root can run a kubelet'
  return undefined
}

/** Makes the programs, the plugins of networks and two images in a folder, and returns it. */
export function ensureKubernetesPrograms(root) {
  const folder = ensurePrograms(root, {
    name: programsName,
    archive: 'kubernetes',
    takes: '8 to 20 minutes',
    build: (making) => {
      buildKubernetes(making)
      buildContainerd(making)
    },
  })
  const files = ensureDebianFiles(folder, debianPackages)
  const busybox = join(files, 'bin', 'busybox')
  makeImageArchive(join(folder, 'pause.tar'), {
    name: 'localhost/pause:1',
    files: { pause: join(files, 'usr/bin/catatonit') },
    config: { Entrypoint: ['/pause', '-P'] },
  })
  makeImageArchive(join(folder, 'box.tar'), {
    name: 'localhost/box:1',
    files: { 'bin/busybox': busybox },
    busybox,
    config: { Cmd: ['/bin/sh'], Env: ['PATH=/bin'], WorkingDir: '/root' },
  })
  return folder
}

/**
 * The parts share nearly all packages, so one program takes a fifth of the time of six. The module's go.mod replaces its
 * k8s.io packages by folders that the module doesn't contain. They are published as v0.x of the same release.
 */
function buildKubernetes(folder) {
  const source = join(folder, 'source')
  mkdirSync(source, { recursive: true })
  writeFileSync(join(source, 'main.go'), mainProgram)
  writeFileSync(join(source, 'go.mod'), kubernetesModule(folder))
  const [, minor] = versions.kubernetes.split('.')
  const flags = ['k8s.io/component-base/version', 'k8s.io/client-go/pkg/version'].flatMap((path) =>
    Object.entries({ gitVersion: `v${versions.kubernetes}`, gitMajor: '1', gitMinor: minor }).map(
      ([name, value]) => `-X ${path}.${name}=${value}`,
    ),
  )
  const output = ['-o', join(folder, 'bin', 'kubernetes'), '.']
  go(['build', '-trimpath', '-ldflags', ['-s', '-w', ...flags].join(' '), ...output], {
    cwd: source,
    env: { CGO_ENABLED: '0' },
  })
}

function kubernetesModule(folder) {
  const args = ['mod', 'download', '-json', `k8s.io/kubernetes@v${versions.kubernetes}`]
  const { status, stdout } = spawnSync(findGo() ?? 'go', args, { cwd: folder, encoding: 'utf8' })
  if (status !== 0) throw new SetUpFailure(`the module of Kubernetes could not be fetched:\n${stdout}`)
  const published = readFileSync(JSON.parse(stdout).GoMod, 'utf8')
  const staged = [...published.matchAll(/^\t(k8s\.io\/[a-z-]+) => \.\/staging\//gm)].map(([, name]) => name)
  const release = `v0.${versions.kubernetes.split('.').slice(1).join('.')}`
  return [
    'module sandyard-test-kubernetes',
    'go 1.24.0',
    'godebug default=go1.24',
    `require k8s.io/kubernetes v${versions.kubernetes}`,
    ...staged.map((name) => `replace ${name} => ${name} ${release}`),
    '',
  ].join('\n')
}

/** Debian's containerd 1.6 and runc 1.1 don't know user namespaces of Pods. */
function buildContainerd(folder) {
  const files = ensureDebianFiles(folder, ['libseccomp-dev', 'libseccomp2'])
  const source = join(folder, 'source-containerd')
  const module = 'github.com/containerd/containerd/v2'
  mkdirSync(join(source, 'pkgconfig'), { recursive: true })
  const lines = [
    'module sandyard-test-containerd',
    'go 1.24.0',
    `require ${module} v${versions.containerd}`,
    `require github.com/opencontainers/runc v${versions.runc}`,
    '',
  ]
  writeFileSync(join(source, 'go.mod'), lines.join('\n'))
  const libraries = join(files, 'usr/lib/x86_64-linux-gnu')
  const description = readFileSync(join(libraries, 'pkgconfig/libseccomp.pc'), 'utf8')
  writeFileSync(join(source, 'pkgconfig/libseccomp.pc'), description.replace(/^prefix=.*/m, `prefix=${files}/usr`))
  const output = ['-o', `${join(folder, 'bin')}/`]
  const commands = ['containerd', 'containerd-shim-runc-v2', 'ctr'].map((name) => `${module}/cmd/${name}`)
  const withoutFileSystems = '-tags=no_btrfs,no_devmapper,no_zfs'
  const flags = `-s -w -X ${module}/version.Version=${versions.containerd}`
  go(['build', withoutFileSystems, '-trimpath', '-ldflags', flags, ...output, ...commands], {
    cwd: source,
    env: { CGO_ENABLED: '0' },
  })
  const runcFlags = `-s -w -X main.version=${versions.runc}`
  go(['build', '-tags=seccomp', '-trimpath', '-ldflags', runcFlags, ...output, 'github.com/opencontainers/runc'], {
    cwd: source,
    env: {
      PKG_CONFIG_PATH: join(source, 'pkgconfig'),
      CGO_CFLAGS: `-I${files}/usr/include`,
      CGO_LDFLAGS: `-L${libraries}`,
    },
  })
}

const mainProgram = `package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// The first argument is the part that this process is.
func main() {
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kubectl":                 kubectl.NewDefaultKubectlCommand,
	}
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	if os.Args[0] == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := parts[os.Args[0]]
	if !known {
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
`
