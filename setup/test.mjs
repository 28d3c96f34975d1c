// `npm test [-- PATH… | --flag=value…]`: installs what is missing, then runs all tests, or those of the named files and folders,
// with Node's test runner. The output ends with the skipped tests, their reasons, and the counts. Fails when no test ran.
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
  return await runTests(root, { paths: paths.length === 0 ? ['test/**/*.test.ts'] : paths, flags })
})
