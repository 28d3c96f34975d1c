// The tools that build parts of a clone. Their packages come with those for development. Where these are not installed, they are fetched
// with the hashes of the lock file and deleted after use, so that their code is never on an operator's machine.
import { createHash } from 'node:crypto'
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { fetchLockedPackages, isForThisMachine } from './node-packages.mjs'
import { say } from './say.mjs'

/** The packages for development that the builds need, besides those that they need themselves. */
const tools = ['vite', 'preact', '@preact/signals', 'uplot', '@xterm/xterm', '@xterm/addon-fit', 'cborg']
/** What the builds run and read beside these packages. The dashboard takes types only from `src/contract`. */
const contents = ['dashboard', 'src/channel', 'setup/bundle.mjs', 'tsconfig.json']

/**
 * Makes a workshop, which fetches nothing before `folder()` is called. While it exists, no other set-up may use one: hold a lock.
 * Disposing it deletes what it has fetched.
 */
export function openWorkshop(root, node) {
  const isDeveloped = existsSync(join(root, 'node_modules', 'vite'))
  const folder = isDeveloped ? root : join(root, '.setup', 'workshop')
  let isReady = isDeveloped
  return {
    /** A folder with `contents` and the packages of the tools. */
    folder() {
      if (!isReady) fetchWorkshop(root, { folder, node })
      isReady = true
      return folder
    },
    close() {
      if (!isDeveloped) rmSync(folder, { recursive: true, force: true })
    },
  }
}

function fetchWorkshop(root, { folder, node }) {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
  say('fetching Vite, which builds the program and its dashboard')
  fetchLockedPackages(folder, lock, withDependencies(lock, tools), node)
  for (const path of contents.filter((name) => existsSync(join(root, name))))
    cpSync(join(root, path), join(folder, path), { recursive: true })
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

/** The SHA-256 of the lock file and of these files and folders, in hex: of all that a build reads. */
export function hashOfSources(root, sources) {
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
