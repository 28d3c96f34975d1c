// `npm test [-- PATH… | --flag=value…]`: installs missing packages, then runs tests with Node's test runner. Without a
// path it runs all tests. The output ends with the skipped tests, their reasons, and the counts. The command fails when
// no test ran.
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain } from './say.mjs'
import { ensureTestPackages } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  ensureNodePackages(root)
  ensureTestPackages()
  const given = process.argv.slice(2)
  const flags = given.filter((word) => word.startsWith('-'))
  const paths = given.filter((word) => !word.startsWith('-'))
  return await runTests(root, { paths: paths.length === 0 ? ['test'] : paths, flags })
})
