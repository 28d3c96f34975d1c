// Programs that only benchmarks need, from Debian's packages. The packages are unpacked into a folder and not installed:
// an installation would start services, and a daemon of containers changes the packet filter of the machine.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { aptGetFresh } from './apt-get.mjs'
import { findProgram, isExecutable } from './find-program.mjs'
import { say } from './say.mjs'

/** The programs: name, the packages with it and what it needs, and what it is for. */
const needs = [
  {
    program: 'sshd',
    packages: ['openssh-server', 'libwrap0'],
    purpose: "sshd, beside which sandboxes' SSH is measured",
  },
  {
    program: 'podman',
    packages: [
      'podman',
      'conmon',
      'containernetworking-plugins',
      'golang-github-containers-common',
      'libdevmapper1.02.1',
      'libgpgme11',
      'libassuan0',
      'libsubid4',
    ],
    purpose: 'podman, beside which sandboxes are measured',
  },
  {
    program: 'dockerd',
    packages: ['docker.io', 'containerd', 'runc', 'tini', 'libdevmapper1.02.1'],
    purpose: 'docker, beside which sandboxes are measured',
  },
  {
    program: 'iptables',
    packages: ['iptables', 'libip4tc2', 'libip6tc2', 'libxtables12', 'libnetfilter-conntrack3', 'libnfnetlink0'],
    purpose: 'iptables, which docker and podman need',
    // Debian makes these links when it installs the package.
    links: {
      to: 'xtables-nft-multi',
      folder: 'usr/sbin',
      names: ['iptables', 'ip6tables', 'iptables-save', 'ip6tables-save', 'iptables-restore', 'ip6tables-restore'],
    },
  },
]

/**
 * Makes sure that the programs exist: on the machine, or unpacked into `folder`. Prints the reason for each that is
 * missing. Returns the variables by which benchmarks find them.
 */
export function ensureBenchPrograms(folder) {
  for (const { program, packages, purpose, links } of needs) {
    if (findProgram(program) !== undefined || findUnpacked(folder, program) !== undefined) continue
    const failure = whyNot() ?? unpack(folder, packages, links)
    if (failure !== undefined) say(`this machine lacks ${purpose}, so that measurement is left out: ${failure}`)
  }
  return { SANDYARD_BENCH_PROGRAMS: folder }
}

/** Finds a program in the folder of unpacked packages. Returns its path, or undefined if there is none. */
function findUnpacked(folder, program) {
  return ['usr/sbin', 'usr/bin', 'sbin', 'bin'].map((path) => join(folder, path, program)).find(isExecutable)
}

function unpack(folder, packages, links) {
  const mark = join(folder, `unpacked ${packages.join(' ')}`)
  if (existsSync(mark)) return 'its packages do not have it'
  say(`unpacking ${packages.join(' ')} into ${folder} (SANDYARD_SETUP=skip prevents this)`)
  const download = join(folder, 'download')
  mkdirSync(download, { recursive: true })
  try {
    const failure = aptGetFresh(['download', ...packages], { cwd: download })
    if (failure !== undefined) return failure
    for (const file of readdirSync(download)) {
      const { status, stderr } = spawnSync('dpkg-deb', ['-x', join(download, file), folder], { encoding: 'utf8' })
      if (status !== 0) return stderr
    }
    for (const name of links?.names ?? []) symlinkSync(links.to, join(folder, links.folder, name))
    writeFileSync(mark, '')
    return undefined
  } finally {
    rmSync(download, { recursive: true, force: true })
  }
}

function whyNot() {
  if (process.env.SANDYARD_SETUP === 'skip') return 'SANDYARD_SETUP=skip forbids fetching it'
  if (findProgram('apt-get') === undefined) return 'there is no apt-get to fetch it'
  return undefined
}
