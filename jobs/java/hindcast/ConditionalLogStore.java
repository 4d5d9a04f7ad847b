package hindcast;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's commits on S3 as conditional PUTs (If-None-Match: *): of two writers of one version, one is refused.
 *
 * <p>S3A makes a file so if it is built with the option that asks for it, and no log store of Delta's builds one.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  public ConditionalLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    FSDataOutputStreamBuilder<?, ?> asked = files.createFile(path).recursive().overwrite(overwrite);
    if (!overwrite) {
      asked = asked.must(CONDITIONAL, "true");
    }
    try {
      FSDataOutputStream out = asked.build();
      while (actions.hasNext()) {
        out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
      out.close();
    } catch (IOException error) {
      if (!overwrite && refused(error)) {
        throw (FileAlreadyExistsException) new FileAlreadyExistsException(path.toString()).initCause(error);
      }
      throw error;
    }
  }

  /** Whether the object was there: found by a look before, or refused by the store (412, or 409 while another writes). */
  private static boolean refused(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      String told = cause.getClass().getSimpleName() + " " + cause.getMessage();
      if (told.contains("FileAlreadyExists") || told.contains("Status Code: 412") || told.contains("Status Code: 409")
          || told.contains("RemoteFileChanged")) {
        return true;
      }
    }
    return false;
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
