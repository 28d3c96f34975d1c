// Builds the dashboard of a clone into `dist/dashboard`. The npm package carries the built one, so nothing is built there.
// Invariant: `dist/dashboard/.sources` is the hash of what it was built from, so a start builds only after a change.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { cpSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fetchLockedPackages, isForThisMachine } from './node-packages.mjs'
import { say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

/** What the dashboard is built from. From `src/contract` it takes types only. */
const sources = ['dashboard', 'src/channel', 'tsconfig.json']
/** The packages for development that the build needs, besides those that they need themselves. */
const tools = ['vite', 'preact', '@preact/signals', 'uplot', '@xterm/xterm', '@xterm/addon-fit', 'cborg']

/**
 * Builds the dashboard unless it is up to date. Fetches Vite, with the hashes of the lock file, where the packages for
 * development are not installed. If that fails, says so and returns: the server then starts without the dashboard.
 */
export function ensureDashboard(root, { node = join(root, '.setup', 'node') } = {}) {
  const target = join(root, 'dist', 'dashboard')
  const hash = hashOf(root)
  const isBuilt = () => existsSync(join(target, '.sources')) && readFileSync(join(target, '.sources'), 'utf8') === hash
  if (isBuilt()) return
  try {
    withSetUpLock(join(root, '.setup', 'dashboard.lock'), () => {
      if (!isBuilt()) build(root, { node, target, hash })
    })
  } catch (error) {
    if (!(error instanceof SetUpFailure)) throw error
    say(`${error.message}\nthe server starts without its dashboard`)
  }
}

function build(root, { node, target, hash }) {
  say('building the dashboard')
  const isDeveloped = existsSync(join(root, 'node_modules', 'vite'))
  const workshop = isDeveloped ? root : fetchWorkshop(root, node)
  const made = `${target}.new`
  const { status, error } = spawnSync(node, [join(workshop, 'dashboard', 'build.mjs'), made], {
    cwd: workshop,
    stdio: ['ignore', process.stderr.fd, process.stderr.fd],
  })
  if (!isDeveloped) rmSync(workshop, { recursive: true, force: true })
  if (status !== 0) throw new SetUpFailure(`the dashboard was not built: ${error?.message ?? `exit code ${status}`}`)
  writeFileSync(join(made, '.sources'), hash)
  rmSync(target, { recursive: true, force: true })
  renameSync(made, target)
}

/** Makes a folder with the sources and, beside them, the packages of the build. */
function fetchWorkshop(root, node) {
  const folder = join(root, '.setup', 'dashboard')
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  say('fetching Vite, which builds the dashboard')
  fetchLockedPackages(folder, lock, withDependencies(lock, tools), node)
  for (const source of sources) cpSync(join(root, source), join(folder, source), { recursive: true })
  return folder
}

/** The names of packages and of all that they need on this machine. */
function withDependencies(lock, names) {
  const found = new Set()
  const visit = (name) => {
    const entry = lock.packages[`node_modules/${name}`]
    if (found.has(name) || entry === undefined || !isForThisMachine(entry)) return
    found.add(name)
    Object.keys({ ...entry.dependencies, ...entry.optionalDependencies }).forEach(visit)
  }
  names.forEach(visit)
  return [...found]
}

function hashOf(root) {
  const hash = createHash('sha256').update(readFileSync(join(root, 'package-lock.json')))
  for (const source of sources) {
    for (const path of filesOf(join(root, source))) hash.update(path.slice(root.length)).update(readFileSync(path))
  }
  return hash.digest('hex')
}

/** The paths of a file, or of all files in a folder, sorted. */
function filesOf(path) {
  if (statSync(path).isFile()) return [path]
  const entries = readdirSync(path, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile())
  return files.map((entry) => join(entry.parentPath ?? entry.path, entry.name)).sort()
}
