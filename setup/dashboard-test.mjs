// `npm run test:dashboard [-- TEST-FILE…]`: uses the dashboard in Debian's Chromium, against a real server with real sandboxes.
import { fileURLToPath } from 'node:url'
import { ensureNodePackages } from './node-packages.mjs'
import { runTests } from './run-tests.mjs'
import { runMain } from './say.mjs'
import { ensureBrowser } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  ensureNodePackages(root)
  ensureBrowser()
  const given = process.argv.slice(2)
  return await runTests(root, { paths: given.length === 0 ? ['test/dashboard'] : given })
})
