// The tools that check openapi.json: two linters, and a generator of clients with what its clients need to run. They are
// not in the lock file, because they are 270 packages.
import { join } from 'node:path'
import { fetchPackages } from './fetch-packages.mjs'

const packages = [
  '@redocly/cli@2.77.0',
  '@stoplight/spectral-cli@6.16.3',
  'openapi-fetch@0.17.0',
  'openapi-typescript@7.13.0',
]

/** Fetches the tools once. Returns their `node_modules`. Throws SetUpFailure with the reason. */
export function ensureDocumentTools(root) {
  const folder = join(root, '.setup', 'document-tools')
  fetchPackages(folder, packages)
  return join(folder, 'node_modules')
}
