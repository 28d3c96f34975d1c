import { open, rm } from 'node:fs/promises'
import type { Config } from '../../config.ts'
import { createFirstOrg, hasOrg } from '../../control/orgs/create-first-org.ts'

/** Where the operator finds the first API key: it existed before, was given, is shown once, or is in a file. */
export type FirstKey =
  | { readonly kind: 'existing' }
  | { readonly kind: 'given' }
  | { readonly kind: 'shown'; readonly key: string }
  | { readonly kind: 'file'; readonly path: string }

const OWNER_ONLY = 0o600

/**
 * Creates the first organization and its API key, if there is none. With `firstKeyFile`, writes the key to this new file.
 * Rejects before it creates anything when the file exists or can't be created, so no key is lost.
 */
export async function createFirstKey(
  deps: Parameters<typeof createFirstOrg>[0],
  { apiKey, firstKeyFile }: Pick<Config, 'apiKey' | 'firstKeyFile'>,
): Promise<FirstKey> {
  if (firstKeyFile === null || apiKey !== null) {
    const first = await createFirstOrg(deps, apiKey)
    if (first === null) return { kind: 'existing' }
    return apiKey === null ? { kind: 'shown', key: first.key } : { kind: 'given' }
  }
  if (await hasOrg(deps)) return { kind: 'existing' }
  const file = await open(firstKeyFile, 'wx', OWNER_ONLY).catch((cause: unknown) => {
    throw new Error(
      `SANDYARD_FIRST_KEY_FILE: the file ${firstKeyFile} can't be created; name a file that doesn't exist`,
      {
        cause,
      },
    )
  })
  try {
    const first = await createFirstOrg(deps, null)
    if (first !== null) {
      await file.writeFile(`${first.key}\n`)
      await file.sync()
      return { kind: 'file', path: firstKeyFile }
    }
  } finally {
    await file.close()
  }
  await rm(firstKeyFile) // another process created the first organization in the meantime
  return { kind: 'existing' }
}
