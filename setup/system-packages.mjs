// Installs the system packages that sandboxes need. No other step of the set-up changes the machine outside the
// project's folder. SANDYARD_SETUP=skip therefore skips only this step.
import { spawnSync } from 'node:child_process'
import { aptGetFresh } from './apt-get.mjs'
import { findProgram } from './find-program.mjs'
import { say } from './say.mjs'

/** The OCI runtimes that the `oci` driver can use. One is enough. */
const ociRuntimes = ['kata-runtime', 'runsc', 'crun', 'runc']

/** The required programs: name, Debian package, and purpose. */
const needs = [
  { programs: ociRuntimes, debianPackage: 'crun', purpose: 'an OCI runtime, which runs the sandboxes' },
  { programs: ['nft'], debianPackage: 'nftables', purpose: 'nft, which enforces network policies' },
  { programs: ['ip'], debianPackage: 'iproute2', purpose: "ip, which creates the sandboxes' networks" },
  { programs: ['mkfs.ext4'], debianPackage: 'e2fsprogs', purpose: "mkfs.ext4, which creates the sandboxes' disks" },
  {
    programs: ['mkfs.btrfs'],
    debianPackage: 'btrfs-progs',
    purpose: 'mkfs.btrfs, whose file system enforces the size limits of volumes',
  },
  {
    programs: ['perl'],
    debianPackage: 'perl-base',
    purpose: "perl, which starts the sandboxes' programs and serves their files",
  },
  { programs: ['fuse2fs'], debianPackage: 'fuse2fs', purpose: 'fuse2fs, which mounts disk images' },
  { programs: ['catatonit'], debianPackage: 'catatonit', purpose: 'catatonit, the first process of a sandbox' },
]

/** The Debian packages of the required programs, as a package's `Depends` lists them. Any one runtime is enough. */
export function systemPackages() {
  return needs.map(({ programs, debianPackage }) => (programs === ociRuntimes ? 'crun | runc | runsc' : debianPackage))
}

/** The programs that only the tests need. */
const testNeeds = [
  {
    programs: ['qemu-storage-daemon'],
    debianPackage: 'qemu-system-common',
    purpose: 'qemu-storage-daemon, which reads disk images in the formats qcow2 and vmdk',
  },
  { programs: ['qemu-img'], debianPackage: 'qemu-utils', purpose: 'qemu-img, which makes disk images for tests' },
  {
    programs: ['bindfs'],
    debianPackage: 'bindfs',
    purpose: 'bindfs, which serves folders with stat_virtualization off',
  },
  {
    programs: ['squashfuse'],
    debianPackage: 'squashfuse',
    purpose: 'squashfuse, which mounts disk images with squashfs',
  },
  {
    programs: ['mksquashfs'],
    debianPackage: 'squashfs-tools',
    purpose: 'mksquashfs, which makes disk images for tests',
  },
  {
    programs: ['ssh'],
    debianPackage: 'openssh-client',
    purpose: 'ssh, which tests the SSH of sandboxes',
  },
  {
    programs: ['rsync'],
    debianPackage: 'rsync',
    purpose: 'rsync, which tests the SSH of sandboxes',
  },
  {
    programs: ['faketime'],
    debianPackage: 'faketime',
    purpose: 'faketime, with which tests set the clock of a server',
  },
  { programs: ['openssl'], debianPackage: 'openssl', purpose: 'openssl, which makes certificates for tests' },
  {
    programs: ['nginx'],
    debianPackage: 'nginx-light',
    service: 'nginx',
    purpose: 'nginx, whose example configuration is tested',
  },
  {
    programs: ['caddy'],
    debianPackage: 'caddy',
    service: 'caddy',
    purpose: 'Caddy, whose example configuration is tested',
  },
  {
    programs: ['prometheus'],
    debianPackage: 'prometheus',
    service: 'prometheus',
    purpose: 'Prometheus, which tests the alert rules and the dashboard',
  },
]

/** The browser of the dashboard's tests. */
const browserNeed = {
  programs: ['chromium'],
  debianPackage: 'chromium',
  purpose: 'chromium, in which the dashboard is tested',
}

/** The programs that only the tests of the container image need. */
const packagingNeeds = ['mmdebstrap', 'umoci'].map((name) => ({
  programs: [name],
  debianPackage: name,
  purpose: `${name}, which makes the container image`,
}))

/**
 * Installs the missing programs. Prints the names of the programs and the command before it runs it. If the programs
 * can't be installed (forbidden, not root, no apt-get, no network), prints the reason and returns. The server starts
 * without them and reports what it can't run.
 */
export function ensureSystemPackages() {
  ensure(needs, 'without them, some or all sandboxes can not run here')
}

/**
 * Installs the programs of the tests as well as those of `ensureSystemPackages`. Tests whose programs are missing are
 * skipped, and the skip names the program.
 */
export function ensureTestPackages() {
  ensure([...needs, ...testNeeds], 'without them, some or all sandboxes and tests can not run here')
}

/** Installs the browser of the dashboard's tests, besides the programs of `ensureTestPackages`. */
export function ensureBrowser() {
  ensure([...needs, ...testNeeds, browserNeed], 'without them, the dashboard can not be tested here')
}

/** Installs the programs that make the container image, besides those of `ensureTestPackages`. */
export function ensurePackagingTools() {
  ensure([...needs, ...testNeeds, ...packagingNeeds], 'without them, some packages can not be tested here')
}

function ensure(wanted, consequence) {
  if (process.platform !== 'linux') return
  const missing = wanted.filter(isMissing)
  if (missing.length === 0) return
  say(`this machine lacks ${missing.map(({ purpose }) => purpose).join('; ')}`)
  const packages = missing.map(({ debianPackage }) => debianPackage)
  const reason = whyNot()
  if (reason !== undefined) {
    say(`${reason}; ${consequence}. To install them: sudo apt-get install ${packages.join(' ')}`)
    return
  }
  const install = ['install', '-y', '--no-install-recommends', ...packages]
  say(`installing from the distribution: apt-get ${install.join(' ')} (SANDYARD_SETUP=skip prevents this)`)
  const failure = aptGetFresh(install)
  disableServices(missing)
  const still = missing.filter(isMissing).map(({ debianPackage }) => debianPackage)
  if (failure === undefined && still.length > 0)
    say(`apt-get succeeded, but the programs of ${still.join(', ')} were not found`)
  else if (failure === undefined) say(`installed ${packages.join(', ')}`)
  else say(`that failed, and the server continues without them. apt-get printed:\n${failure}`)
}

/** Debian starts the services of the packages that it installs. The tests start their own processes. */
function disableServices(installed) {
  const services = installed.flatMap(({ service }) => service ?? [])
  if (services.length === 0 || findProgram('systemctl') === undefined) return
  spawnSync('systemctl', ['disable', '--now', ...services], { stdio: 'ignore', timeout: 30_000 })
}

function isMissing({ programs }) {
  return programs.every((program) => findProgram(program) === undefined)
}

function whyNot() {
  if (process.env.SANDYARD_SETUP === 'skip') return 'SANDYARD_SETUP=skip forbids installing them'
  if (findProgram('apt-get') === undefined) return 'there is no apt-get to install them'
  if (process.getuid?.() !== 0) return 'only root can install them'
  return undefined
}
