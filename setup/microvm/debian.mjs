// Fetches Debian's packages with this machine's apt-get, which checks their signatures, and unpacks them into a folder.
// It installs nothing on this machine and runs no package scripts.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { aptGet, aptGetFresh } from '../apt-get.mjs'
import { say, SetUpFailure } from '../say.mjs'

/**
 * The package that depends on the newest kernel for virtual machines. That kernel is small and includes the KVM
 * modules.
 */
const kernelPackage = 'linux-image-cloud-amd64'

/** The packages of the guest's root file system, without their dependencies. */
const guestPackages = [
  'bash', // ldd is a bash script; it finds the libraries of the demo image's programs
  'dash',
  'coreutils',
  'grep',
  'sed',
  'findutils',
  'hostname',
  'mount',
  'util-linux',
  'kmod',
  'procps',
  'passwd',
  'iproute2',
  'nftables',
  'e2fsprogs',
  'openssl', // certificates of the tests
  'qemu-utils', // disk images of the tests
  'qemu-system-common', // the server of disk images
  'bindfs', // the server of folders with the machine's metadata
  'btrfs-progs',
  'perl-base',
  'tar',
  'libc-bin', // contains the locale C.UTF-8
  'ca-certificates', // without certificates the runtime aborts
  'libstdc++6',
  'libcap-ng0', // the runtime's library links to it
  'catatonit', // the guest's process 1
  'busybox-static', // the initramfs
]

/** The symlinks of Debian's merged /usr, which the packages expect. */
const mergedFolders = ['bin', 'sbin', 'lib', 'lib64', 'lib32', 'libx32']

/**
 * Unpacks the guest's packages with all dependencies, and the newest kernel, into `root`. Returns the kernel's release.
 */
export function unpackDebian(root, workFolder) {
  const archives = join(workFolder, 'archives')
  rmSync(archives, { recursive: true, force: true })
  mkdirSync(join(archives, 'partial'), { recursive: true })
  const status = join(workFolder, 'no-packages')
  writeFileSync(status, '')
  say(`fetching Debian packages for the guest (35 MB): ${guestPackages.join(' ')}, and what they depend on`)
  // With an empty list of installed packages, apt-get fetches every dependency of the guest.
  const settings = [`Dir::State::status=${status}`, `Dir::Cache::archives=${archives}`, 'Debug::NoLocking=1']
  const failure = aptGetFresh([
    ...settings.flatMap((setting) => ['-o', setting]),
    '-y',
    '--no-install-recommends',
    '--download-only',
    'install',
    ...guestPackages,
  ])
  if (failure !== undefined) throw new SetUpFailure(`the guest's packages could not be fetched:\n${failure}`)
  const kernel = newestKernel()
  say(`fetching the guest's kernel (27 MB): apt-get download ${kernel}`)
  const kernelFailure = aptGet(['-o', 'APT::Sandbox::User=root', 'download', kernel], { cwd: archives })
  if (kernelFailure !== undefined) throw new SetUpFailure(`the kernel could not be fetched:\n${kernelFailure}`)
  for (const folder of mergedFolders) {
    mkdirSync(join(root, 'usr', folder), { recursive: true })
    run('ln', ['-s', `usr/${folder}`, join(root, folder)])
  }
  for (const name of readdirSync(archives).filter((entry) => entry.endsWith('.deb'))) {
    const unpack = 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"'
    run('sh', ['-c', unpack, join(archives, name), root])
  }
  rmSync(archives, { recursive: true })
  const release = kernel.replace(/^linux-image-/, '')
  run('chroot', [root, '/sbin/depmod', release])
  return release
}

function newestKernel() {
  const { stdout } = spawnSync('apt-cache', ['depends', kernelPackage], { encoding: 'utf8' })
  const kernel = /Depends: (linux-image-\S+)/.exec(stdout ?? '')?.[1]
  if (kernel === undefined) throw new SetUpFailure(`this distribution has no package ${kernelPackage}`)
  return kernel
}

/** Runs a program that must succeed. Returns its output. */
export function run(program, args, options = {}) {
  const { status, error, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8', ...options })
  if (status === 0) return stdout
  throw new SetUpFailure(`${program} ${args.join(' ')} failed: ${error?.message ?? stderr ?? ''}`)
}
