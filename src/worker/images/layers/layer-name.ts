/** The name of a layer's folder in the store. It is short because the options of a mount have little room. */
export function layerName(diffId: string): string {
  return diffId.slice('sha256:'.length, 'sha256:'.length + 32)
}
