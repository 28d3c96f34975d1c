// The set-up of Sandyard as an npm package: npm has installed the dependencies, beside this package or in its own
// `node_modules`. docs/decisions/0032-npm-package.md has the reasons.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { isExecutable } from './find-program.mjs'
import { fetchLockedPackages, isForThisMachine, linkNode, platformPackage } from './node-packages.mjs'
import { say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'

/** Whether this folder is an installed package: it has the built program and not the sources. */
export function isInstalledPackage(root) {
  return !existsSync(join(root, 'src', 'cli.ts'))
}

/**
 * Makes `.setup/node` a link to the Node that runs Sandyard, and fetches the packages that npm left out. npm silently
 * leaves out optional packages whose `engines` exclude the Node that runs npm, for example the microVM runtime. Without a
 * network, every start of a worker tries to fetch them again, and other commands don't.
 */
export function completeInstalledPackage(root, { runsSandboxes }) {
  const lock = JSON.parse(readFileSync(join(root, 'npm-shrinkwrap.json'), 'utf8'))
  const missing = () => missingPackages(root, lock)
  const hasNode = () => isExecutable(join(root, '.setup', 'node'))
  const isReady = () => hasNode() && (!runsSandboxes || missing().length === 0)
  if (isReady()) return
  asOwner(root, () =>
    withSetUpLock(join(root, '.setup'), () => {
      if (isReady()) return
      if (missing().length > 0) fetchMissing(root, lock, missing())
      linkNode(root, findPackage(root, platformPackage))
    }),
  )
}

/** Returns the names of locked packages for this platform that are not installed. */
function missingPackages(root, lock) {
  const names = Object.entries(lock.packages).filter(([path, entry]) => path !== '' && isForThisMachine(entry))
  return names
    .map(([path]) => path.replace(/^node_modules\//, ''))
    .filter((name) => findPackage(root, name) === undefined)
}

/** Finds a package as Node does: in this package's `node_modules`, or in one above it. */
function findPackage(root, name) {
  for (let folder = root; ; folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name)
    if (existsSync(join(candidate, 'package.json'))) return candidate
    if (folder === dirname(folder)) return undefined
  }
}

/** Fetches packages with their locked hashes under Node 24. Without a network, Sandyard runs without them. */
function fetchMissing(root, lock, names) {
  const bootstrap = join(root, '.setup', 'bootstrap')
  say(`fetching what npm left out: ${names.join(' ')}`)
  try {
    const node = findPackage(root, platformPackage)
    fetchLockedPackages(bootstrap, lock, names, node === undefined ? process.execPath : join(node, 'bin', 'node'))
    for (const name of names) {
      const to = join(root, 'node_modules', name)
      mkdirSync(dirname(to), { recursive: true })
      renameSync(join(bootstrap, 'node_modules', name), to)
    }
  } catch (error) {
    if (!(error instanceof SetUpFailure)) throw error
    say(`${error.message}\nSandyard starts without ${names.join(' ')}; \`sandyard doctor\` shows what that prevents`)
  }
  rmSync(bootstrap, { recursive: true, force: true })
}

function asOwner(root, work) {
  try {
    work()
  } catch (error) {
    if (error.code !== 'EACCES' && error.code !== 'EROFS') throw error
    throw new SetUpFailure(`${root} can't be written: run \`sandyard doctor\` once as the user who installed Sandyard`)
  }
}
