// The programs of the operating system that sandboxes need. They are the only thing the set-up changes outside the
// project's folder, and so the only thing that SANDYARD_SETUP=skip refuses.
import { aptGetFresh } from './apt-get.mjs'
import { findProgram } from './find-program.mjs'
import { say } from './say.mjs'

/** OCI runtimes that the `oci` driver can use; any one of them will do. */
const ociRuntimes = ['kata-runtime', 'runsc', 'crun', 'runc']

/** What each of these is for, and the Debian package that has it. */
const needs = [
  { programs: ociRuntimes, debianPackage: 'crun', purpose: 'an OCI runtime, which runs the sandboxes' },
  { programs: ['nft'], debianPackage: 'nftables', purpose: 'nft, which enforces network policies' },
  { programs: ['ip'], debianPackage: 'iproute2', purpose: "ip, which makes the sandboxes' networks" },
  { programs: ['mkfs.ext4'], debianPackage: 'e2fsprogs', purpose: "mkfs.ext4, which makes the sandboxes' disks" },
  {
    programs: ['mkfs.btrfs'],
    debianPackage: 'btrfs-progs',
    purpose: 'mkfs.btrfs, whose file system holds the caps of volumes',
  },
  {
    programs: ['perl'],
    debianPackage: 'perl-base',
    purpose: "perl, which starts the sandboxes' programs and serves their files",
  },
  { programs: ['catatonit'], debianPackage: 'catatonit', purpose: 'catatonit, the first process of a sandbox' },
]

/** What the tests alone use. */
const testNeeds = [
  {
    programs: ['ssh'],
    debianPackage: 'openssh-client',
    purpose: 'ssh, by which the tests try the SSH of sandboxes',
  },
]

/**
 * Installs what is missing of the programs above, after saying what and by which command. Whatever the reason that it
 * cannot (refused, not root, no apt-get, no network), it says so and returns: the server starts and names what it cannot run.
 */
export function ensureSystemPackages() {
  ensure(needs, 'without them some or all sandboxes cannot run here')
}

/** As `ensureSystemPackages`, with what the tests use beside it; without that, they skip what needs it and say so. */
export function ensureTestPackages() {
  ensure([...needs, ...testNeeds], 'without them some or all sandboxes and tests cannot run here')
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
  say(`installing from the distribution: apt-get ${install.join(' ')} (SANDYARD_SETUP=skip refuses this)`)
  const failure = aptGetFresh(install)
  const still = missing.filter(isMissing).map(({ debianPackage }) => debianPackage)
  if (failure === undefined && still.length > 0)
    say(`apt-get succeeded, and yet no program of ${still.join(', ')} is found`)
  else if (failure === undefined) say(`installed ${packages.join(', ')}`)
  else say(`that failed, and the server goes on without; apt-get said:\n${failure}`)
}

function isMissing({ programs }) {
  return programs.every((program) => findProgram(program) === undefined)
}

function whyNot() {
  if (process.env.SANDYARD_SETUP === 'skip') return 'SANDYARD_SETUP=skip refuses to install them'
  if (findProgram('apt-get') === undefined) return 'there is no apt-get here to install them with'
  if (process.getuid?.() !== 0) return 'only root can install them'
  return undefined
}
