/**
 * What a runtime said, for a sandbox's owner: where it names these folders of the worker, it names none. A folder is
 * absolute; the root itself can't be hidden.
 */
export function hideHostFolders(said: string, folders: readonly string[]): string {
  return folders.filter((folder) => folder !== '/').reduce((text, folder) => text.replaceAll(folder, '…'), said)
}
