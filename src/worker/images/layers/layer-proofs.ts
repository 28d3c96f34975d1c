import { existsSync } from 'node:fs'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { OrgId } from '../../../domain/ids.ts'

/** Who may use a layer: one organization, or everyone because it was public or the operator loaded it. */
export type LayerHolder = OrgId | 'everyone'

/**
 * To whom each layer was proved. Only a complete, verified download is a proof. A registry's word for it is none, because
 * a tenant can run a registry that says anything. A layer without a proof is downloaded again, so losing one is safe.
 */
interface LayerProofs {
  /** Whether the layer was proved to this holder, or to everyone. */
  isProven(layer: string, holder: LayerHolder): boolean
  /** Records that this holder downloaded and verified the layer. May be repeated. */
  record(layer: string, holder: LayerHolder): Promise<void>
  /** Forgets all proofs of a layer that is about to be deleted. */
  forget(layer: string): Promise<void>
}

/** Opens the proofs: an empty file `LAYER/HOLDER` for each, so that several processes may write them at once. */
export async function openLayerProofs(dir: string): Promise<LayerProofs> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  return {
    isProven: (layer, holder) =>
      existsSync(join(dir, layer, 'everyone')) || existsSync(join(dir, layer, fileOf(holder))),
    async record(layer, holder) {
      await mkdir(join(dir, layer), { recursive: true, mode: 0o700 })
      await writeFile(join(dir, layer, fileOf(holder)), '', { mode: 0o600 })
    },
    forget: (layer) => rm(join(dir, layer), { recursive: true, force: true }),
  }
}

// Throws if the id isn't a UUID, because a path with such an id could lead out of the folder.
function fileOf(holder: LayerHolder): string {
  if (holder !== 'everyone' && !/^[0-9a-f-]{36}$/.test(holder)) throw new Error(`not an organization: ${holder}`)
  return holder
}
