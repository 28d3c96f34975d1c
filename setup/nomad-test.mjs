// `npm run test:nomad [-- TEST-FILE…]`: runs tests against a real Nomad of one node, which it starts and takes down.
// CONTRIBUTING.md says how slow this is.
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ensureNomadPrograms, nodeAddress, startNomad } from './engines/nomad.mjs'
import { runTestsOnMachine } from './engines/run-on-machine.mjs'
import { ensureNodePackages } from './node-packages.mjs'
import { runMain, say } from './say.mjs'
import { ensurePackagingTools } from './system-packages.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

await runMain(async () => {
  const reason = whyNot()
  if (reason !== undefined) {
    say(`NOTHING WAS TESTED: ${reason}`)
    return 2
  }
  ensureNodePackages(root)
  ensurePackagingTools()
  const programs = ensureNomadPrograms(root)
  const given = process.argv.slice(2)
  return await runTestsOnMachine(
    root,
    () => startNomad(programs),
    ({ folder }) => ({
      paths: given.length === 0 ? ['test/nomad'] : given,
      env: {
        NOMAD_ADDR: `http://${nodeAddress}:4646`,
        PATH: [join(folder, 'tools'), process.env.PATH].join(delimiter),
        SANDYARD_TEST_NOMAD: folder,
      },
    }),
  )
})

function whyNot() {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'Nomad is built for x64 Linux only'
  if (process.getuid?.() !== 0) return 'only root can run a Nomad client'
  return undefined
}
